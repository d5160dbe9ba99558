"""The tasks' sections of the configuration: their keys, and the sizes they ask of a model.

Each section's task is in `headcount.tasks`, under the same name. No torch here: a wrong request
fails before anything heavy is loaded.
"""

import importlib.util
import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from headcount.errors import RequestError
from headcount.section import PositiveInt, Section


def need(package: str, module: str, extra: str, what: str) -> None:
    """Refuse a request that needs a package which is not installed."""
    if importlib.util.find_spec(module) is None:
        raise RequestError(f"{what}: needs {package}; pip install 'headcount[{extra}]'")


class TaskSection(Section):
    """What every task has, and what it asks of the model.

    inputs, causal, and each task's n_inputs and n_outputs, are those of `ModelShape`.
    """

    batch_size: PositiveInt
    """Sequences of one optimiser step."""
    seq_len: int
    """Inputs of one sequence, the one where an answer is read included."""
    eval_batch_size: PositiveInt
    """Changes speed and memory of an evaluation, not its result."""

    inputs: ClassVar[Literal["tokens", "vectors"]] = "tokens"
    causal: ClassVar[bool] = True


class Generated(TaskSection):
    """A task whose sequences are drawn as they are needed."""

    eval_sequences: PositiveInt
    """Sequences of the validation split, and of the test split; the same for every seed."""


class Symbolic(Generated):
    """A generated task whose inputs and answers are of one vocabulary."""

    vocab_size: Annotated[int, Field(ge=4)]

    @property
    def n_inputs(self) -> int:
        return self.vocab_size

    @property
    def n_outputs(self) -> int:
        return self.vocab_size


# -- text ----------------------------------------------------------------------------------------


class MobyDick(TaskSection):
    """Next-byte prediction on the novel that ships with the package."""

    name: Literal["moby_dick"]
    seq_len: Annotated[int, Field(ge=2, le=4096)]
    eval_tokens: PositiveInt
    """Bytes of the validation split scored at each validation; the test split is scored whole."""

    n_inputs: ClassVar[int] = 256
    n_outputs: ClassVar[int] = 256


class Text(TaskSection):
    """Next-token prediction on a user's own text."""

    seq_len: Annotated[int, Field(ge=2, le=65536)]
    eval_tokens: PositiveInt
    """Tokens of the validation split scored at each validation."""
    test_tokens: PositiveInt
    """Tokens of the test split scored at the end."""
    field: str
    """The field of JSONL, Parquet or a data set that holds the text."""
    document_mask: bool
    """Whether a document is kept from seeing those packed into the same sequence."""
    tokenizer: Literal["bytes", "bpe"]
    vocab_size: Annotated[int, Field(ge=257, le=65535)] | None
    """BPE: symbols, the mark between documents among them; null for bytes."""

    @property
    def n_inputs(self) -> int:
        """The vocabulary; for bytes 256 and the mark between documents."""
        return self.vocab_size or 257

    @property
    def n_outputs(self) -> int:
        return self.n_inputs

    @model_validator(mode="after")
    def _tokenizer_fits(self) -> Self:
        if (self.tokenizer == "bpe") != (self.vocab_size is not None):
            valid = "257 to 65535" if self.tokenizer == "bpe" else "null"
            raise RequestError(
                f"task.vocab_size={self.vocab_size} with task.tokenizer={self.tokenizer}; "
                f"valid: {valid}"
            )
        if self.tokenizer == "bpe":
            need("tokenizers", "tokenizers", "text", "task.tokenizer=bpe")
        return self


class TextFiles(Text):
    """A file, a folder or a glob of plain text, JSONL or Parquet."""

    name: Literal["text_files"]
    path: str


class HFText(Text):
    """A Hugging Face data set, by name or from local files."""

    name: Literal["hf_text"]
    dataset: str
    """A name on the hub, a local folder, or a format (json, parquet, text) for `data_files`."""
    subset: str | None
    data_files: str | None
    """Local files of the format that `dataset` names."""
    split: str
    """The data set's own split that is taken, and split here into training, validation and test."""
    streaming: bool
    """Take documents as they come, without keeping the data set on disk."""
    max_documents: PositiveInt | None

    @model_validator(mode="after")
    def _has_library(self) -> Self:
        need("datasets", "datasets", "text", "task=hf_text")
        return self


# -- one answer a sequence -----------------------------------------------------------------------


class EndpointSelection(TaskSection):
    """Given (u, v, i, #), name the i-th endpoint of the edge (u, v) of the complete digraph."""

    name: Literal["endpoint_selection"]
    seq_len: Literal[4]
    n_vertices: Annotated[int, Field(ge=3, le=512)]

    @property
    def n_inputs(self) -> int:
        """Vertices, the two indices, and the read-out mark."""
        return self.n_vertices + 3

    @property
    def n_outputs(self) -> int:
        return self.n_inputs


class Retrieval(Generated):
    """D-retrieval: the sum of the D largest coordinates, each taken over all points."""

    name: Literal["retrieval"]
    seq_len: Annotated[int, Field(ge=3, le=4096)]
    d_point: PositiveInt
    """Width of a point."""
    n_terms: PositiveInt
    """D: maxima summed, one a coordinate."""

    inputs: ClassVar[Literal["tokens", "vectors"]] = "vectors"
    n_outputs: ClassVar[int] = 1

    @property
    def n_inputs(self) -> int:
        """A point, and the two marks that tell points from the read-out."""
        return self.d_point + 2

    @model_validator(mode="after")
    def _terms_fit(self) -> Self:
        if self.n_terms > self.d_point:
            raise RequestError(
                f"task.n_terms={self.n_terms}: a point has task.d_point={self.d_point} coordinates; "
                f"valid: 1 to {self.d_point}"
            )
        return self


class Neighbour(Generated):
    """Points on the unit sphere, then a query: give back one of the points."""

    seq_len: Annotated[int, Field(ge=3, le=4096)]
    d_point: Annotated[int, Field(ge=2)]
    """Width of a point."""

    inputs: ClassVar[Literal["tokens", "vectors"]] = "vectors"

    @property
    def n_inputs(self) -> int:
        """A point, and the mark of the query."""
        return self.d_point + 1

    @property
    def n_outputs(self) -> int:
        return self.d_point


class NearestPoint(Neighbour):
    """The point nearest to the query."""

    name: Literal["nearest_point"]


class FarthestPoint(Neighbour):
    """The point farthest from the query."""

    name: Literal["farthest_point"]


# -- recall --------------------------------------------------------------------------------------


class Recall(Symbolic):
    """Key-value pairs, then the keys again: give each key's value."""

    seq_len: Annotated[int, Field(ge=4, le=65536)]
    n_pairs: list[PositiveInt] = Field(min_length=1)
    """Pairs of a sequence; several values give sequences of several difficulties in equal parts."""
    power: float = Field(gt=0)
    """a: a repeated key stands at the i-th place after the pairs with p(i) ∝ a·i^(a−1); 1 is
    uniform."""

    n_parts: ClassVar[int]
    """Parts of a key."""

    @property
    def n_keys(self) -> int:
        """Symbols to draw each part of a key from; symbol 0 is the filler's."""
        return self.vocab_size // (self.n_parts + 1) - 1

    def refuse(self, most: int, symbols: int, width: int) -> None:
        """Refuse more pairs than the length has room for, or than there are symbols for.

        most: the largest n_pairs. symbols: key symbols that it needs. width: places of a pair."""
        if 2 * width * most > self.seq_len:
            raise RequestError(
                f"task.n_pairs={most} needs {2 * width}·{most} places, but "
                f"task.seq_len={self.seq_len}; "
                f"valid: n_pairs up to {self.seq_len // (2 * width)}, or a longer seq_len"
            )
        n_values = self.vocab_size - self.n_parts * (self.vocab_size // (self.n_parts + 1))
        if symbols > self.n_keys or most > n_values:
            raise RequestError(
                f"task.vocab_size={self.vocab_size} has too few symbols for task.n_pairs={most}; "
                f"valid: at least {(self.n_parts + 1) * (max(symbols, most) + 1)}"
            )


class MQAR(Recall):
    """Multi-query associative recall (Zoology)."""

    name: Literal["mqar"]
    n_parts: ClassVar[int] = 1

    @model_validator(mode="after")
    def _pairs_fit(self) -> Self:
        self.refuse(max(self.n_pairs), max(self.n_pairs), 2)
        return self


class CompositionalMQAR(Recall):
    """MQAR whose keys have two parts, neither of which tells the value."""

    name: Literal["compositional_mqar"]
    n_parts: ClassVar[int] = 2

    @model_validator(mode="after")
    def _pairs_fit(self) -> Self:
        for n in self.n_pairs:
            side = math.isqrt(n)
            if side * side != n:
                raise RequestError(
                    f"task.n_pairs={n}: keys form a square grid; nearest valid: {side * side} or "
                    f"{(side + 1) ** 2}"
                )
        self.refuse(max(self.n_pairs), math.isqrt(max(self.n_pairs)), 3)
        return self


class Induction(Symbolic):
    """Random tokens, repeated: after the first round every next token is known."""

    name: Literal["induction"]
    seq_len: Annotated[int, Field(ge=8, le=65536)]


class SelectiveCopy(Symbolic):
    """Data tokens scattered among filler; then give them in order."""

    name: Literal["selective_copy"]
    seq_len: Annotated[int, Field(ge=4, le=65536)]
    n_data: PositiveInt
    """Data tokens of a sequence."""

    @model_validator(mode="after")
    def _data_fit(self) -> Self:
        if 2 * self.n_data > self.seq_len:
            raise RequestError(
                f"task.n_data={self.n_data} needs {2 * self.n_data} places, but "
                f"task.seq_len={self.seq_len}; valid: 1 to {self.seq_len // 2}"
            )
        return self


class Needle(Generated):
    """One fact somewhere in long filler, and a question for it at the end."""

    name: Literal["needle"]
    seq_len: Annotated[int, Field(ge=16, le=65536)]
    n_keys: PositiveInt
    n_values: Annotated[int, Field(ge=2)]
    n_filler: Annotated[int, Field(ge=2)]
    """Symbols of the filler."""

    @property
    def n_inputs(self) -> int:
        return self.n_keys + self.n_values + self.n_filler

    @property
    def n_outputs(self) -> int:
        return self.n_inputs


# -- images --------------------------------------------------------------------------------------


class Digits(TaskSection):
    """Real 8×8 images of handwritten digits, as 2×2 patches, classified by an encoder."""

    name: Literal["digits"]
    seq_len: Literal[17]
    """16 patches and the class token."""

    inputs: ClassVar[Literal["tokens", "vectors"]] = "vectors"
    causal: ClassVar[bool] = False
    n_inputs: ClassVar[int] = 5
    """Four pixels, and the class token's mark."""
    n_outputs: ClassVar[int] = 10

    @model_validator(mode="after")
    def _has_images(self) -> Self:
        need("scikit-learn", "sklearn", "vision", "task=digits")
        return self


Task = Annotated[
    MobyDick
    | TextFiles
    | HFText
    | EndpointSelection
    | Retrieval
    | NearestPoint
    | FarthestPoint
    | MQAR
    | CompositionalMQAR
    | Induction
    | SelectiveCopy
    | Needle
    | Digits,
    Field(discriminator="name"),
]
