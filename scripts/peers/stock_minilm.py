"""Exports all-MiniLM-L6-v2 the way anyone would, as the yardstick of `make bench`.

BertModel of transformers, the TorchScript exporter and onnxruntime's dynamic
int8 quantisation, all with their defaults. Needs the packages torch,
transformers, onnx and onnxruntime; prints the file to name in
STOCK_MINILM.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from safetensors.torch import load_file
from transformers import BertConfig, BertModel


class LastState(torch.nn.Module):
    def __init__(self, model: BertModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor) -> torch.Tensor:
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return self.model(**given).last_hidden_state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="folder with config.json and model.safetensors")
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    args = parser.parse_args()

    model = BertModel(BertConfig.from_pretrained(args.base), add_pooling_layer=False).eval()
    model.load_state_dict(load_file(args.base / "model.safetensors"), strict=False)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    ids = torch.ones(2, 16, dtype=torch.long)
    args.out.mkdir(parents=True, exist_ok=True)
    full, small = args.out / "stock.onnx", args.out / "stock.int8.onnx"
    torch.onnx.export(
        LastState(model), (ids, ids, ids * 0), full, input_names=names, output_names=["last_hidden_state"],
        dynamic_axes={name: {0: "batch", 1: "tokens"} for name in [*names, "last_hidden_state"]},
        opset_version=18, dynamo=False,
    )
    quantize_dynamic(full, small, weight_type=QuantType.QInt8)
    print(small)


if __name__ == "__main__":
    main()
