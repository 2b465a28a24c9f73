"""
Hugging Face Trainer
====================

Focal loss and calibration metrics for a small, randomly initialised BERT.

::

    pip install 'focalcal[integrations]'
    python examples/huggingface_trainer.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from focalcal.integrations.huggingface import compute_loss_func, compute_metrics


def sentences(n: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Random tokens; the class is whether token 1 or token 2 occurs more often."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 5, (n, 12), generator=generator)
    labels = ((tokens == 1).sum(dim=1) > (tokens == 2).sum(dim=1)).long()
    return [{"input_ids": t, "labels": y} for t, y in zip(tokens, labels)]


def main(folder: Path) -> dict[str, float]:
    """The evaluation after two epochs: `eval_ece`, `eval_nll` and so on."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=8,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            num_labels=2,
        )
    )
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=32,
        gradient_accumulation_steps=2,
        learning_rate=5e-3,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=sentences(512, 0),
        eval_dataset=sentences(256, 1),
        compute_loss_func=compute_loss_func("fl-2"),
        compute_metrics=compute_metrics,
    )
    trainer.train()
    return trainer.evaluate()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = main(Path(folder))
    for name in ("accuracy", "nll", "brier", "ece"):
        print(f"eval_{name:9} {found[f'eval_{name}']:.4f}")

# sphinx_gallery_thumbnail_path = '_build/cards/huggingface_trainer.png'
