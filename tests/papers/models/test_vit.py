"""The vision transformer against PyTorch's own encoder layer."""

import pytest
import torch

from focalcal.errors import InputError
from focalcal_papers.models import make_model, parameter_count


def test_count_by_hand():
    with torch.device("meta"):
        model = make_model("vit", 10)
    d, tokens = 384, 65
    layer = (d * 3 * d + 3 * d) + (d * d + d) + (d * 4 * d + 4 * d) + (4 * d * d + d) + 4 * d
    embedding = (4 * 4 * 3 * d + d) + d + tokens * d
    assert parameter_count(model) == embedding + 6 * layer + 2 * d + (d + 1) * 10


def test_layers_equal_pytorchs_encoder():
    """torch.nn.TransformerEncoderLayer is independent: another attention, another MLP."""
    torch.manual_seed(0)
    ours = make_model("vit", 10, depth=1, width=24, heads=3).eval().double().layers[0]
    theirs = torch.nn.TransformerEncoderLayer(
        24, 3, 96, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    theirs = theirs.double().eval()
    pairs = {
        "self_attn.in_proj_weight": ours.qkv.weight,
        "self_attn.in_proj_bias": ours.qkv.bias,
        "self_attn.out_proj.weight": ours.out.weight,
        "self_attn.out_proj.bias": ours.out.bias,
        "linear1.weight": ours.up.weight,
        "linear1.bias": ours.up.bias,
        "linear2.weight": ours.down.weight,
        "linear2.bias": ours.down.bias,
    }
    for i, norm in ((1, ours.norm1), (2, ours.norm2)):
        pairs |= {f"norm{i}.weight": norm.weight, f"norm{i}.bias": norm.bias}
    theirs.load_state_dict(pairs)
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-10, atol=1e-12)


def test_bad_settings():
    with pytest.raises(InputError, match="divisible by the patch 5"):
        make_model("vit", 10, patch=5)
    with pytest.raises(InputError, match="divisible by 6 heads, got 100"):
        make_model("vit", 10, width=100)
