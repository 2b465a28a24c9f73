"""Adapters for other libraries; import the module for the one you use.

- `segmentation`: per-pixel predictions (N, C, H, W) with ignored labels (no library needed);
- `tracking`: metrics and a reliability diagram to TensorBoard, MLflow and Weights & Biases;
- `torchmetrics`: metric classes that accumulate, merge and synchronise;
- `lightning`: a callback that measures each epoch and saves a fitted calibrator;
- `huggingface`: `compute_loss_func` and `compute_metrics` for the `Trainer`.

scikit-learn, XGBoost and LightGBM need no module: `focalcal.calibrators.CalibratedClassifier`.
Plain PyTorch needs `focalcal.calibrators.CalibratedModule`; pandas and polars columns can be
passed wherever arrays can.
"""
