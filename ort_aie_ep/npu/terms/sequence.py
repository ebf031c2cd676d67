"""Instruction sequences of a design, written once against symbolic shapes.

A `Sequence` is a small program: loops and conditions over integer expressions, and six statements
that reach the device. These are a transfer between a buffer argument and a fifo that ends at a
shim, the start of a worker with its run-time parameters, a wait for everything (`wait`) or for some
fifos (`arrive`), the work that the cores are predicted to do, and a cut (a place where the stream
may be divided into runs). The manifest carries
the sequence as JSON (`Sequence.to_json`). `src/npu` interprets it for a shape and encodes the
words, and `aie_kernels/mlir/sequences.py` walks the same tree. Nothing here knows a register.

All units are bytes: offsets, strides and the innermost run of a transfer are bytes and multiples of
4, the granularity of the DMA (AM020).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from ort_aie_ep.npu.terms.errors import DesignError

#: The result of `Expr.to_json`: a number, a symbol's name, or [operator, left, right].
Json = Any

OPERATORS = ("+", "-", "*", "//", "%", "ceil", "min", "max", "<", "<=", "==")


@dataclass(frozen=True)
class Expr:
    """An integer expression: a constant, a symbol, or an operator on two expressions.

    The operators are + - * // % on integers with floor division (divisors are positive), `ceil`
    (division rounded up), `min`, `max`, and the comparisons < <= ==, which return 1 or 0.
    """

    op: str
    left: Expr | int | str
    right: Expr | None = None

    def __add__(self, other: Value) -> Expr:
        return _binary("+", self, other)

    def __radd__(self, other: Value) -> Expr:
        return _binary("+", other, self)

    def __sub__(self, other: Value) -> Expr:
        return _binary("-", self, other)

    def __rsub__(self, other: Value) -> Expr:
        return _binary("-", other, self)

    def __mul__(self, other: Value) -> Expr:
        return _binary("*", self, other)

    def __rmul__(self, other: Value) -> Expr:
        return _binary("*", other, self)

    def __floordiv__(self, other: Value) -> Expr:
        return _binary("//", self, other)

    def __rfloordiv__(self, other: Value) -> Expr:
        return _binary("//", other, self)

    def __mod__(self, other: Value) -> Expr:
        return _binary("%", self, other)

    def __rmod__(self, other: Value) -> Expr:
        return _binary("%", other, self)

    def to_json(self) -> Json:
        """A number, a name, or [operator, left, right]."""
        if self.op in ("constant", "symbol"):
            return self.left
        assert isinstance(self.left, Expr)
        assert self.right is not None
        return [self.op, self.left.to_json(), self.right.to_json()]


Value = Expr | int


def expr(value: Value) -> Expr:
    """`value` as an expression."""
    return value if isinstance(value, Expr) else Expr("constant", int(value))


def symbol(name: str) -> Expr:
    """The symbol `name`: a parameter of the sequence, a loop's index or a `let`."""
    return Expr("symbol", name)


def _binary(op: str, left: Value, right: Value) -> Expr:
    a, b = expr(left), expr(right)
    if a.op == b.op == "constant":
        return Expr("constant", _apply(op, int(a.left), int(b.left)))  # type: ignore[arg-type]
    return Expr(op, a, b)


def ceil_div(a: Value, b: Value) -> Expr:
    """a / b rounded up."""
    return _binary("ceil", a, b)


def minimum(a: Value, b: Value) -> Expr:
    """The smaller of the two."""
    return _binary("min", a, b)


def maximum(a: Value, b: Value) -> Expr:
    """The larger of the two."""
    return _binary("max", a, b)


def less(a: Value, b: Value) -> Expr:
    """1 where a < b, else 0."""
    return _binary("<", a, b)


def at_most(a: Value, b: Value) -> Expr:
    """1 where a <= b, else 0."""
    return _binary("<=", a, b)


def equal(a: Value, b: Value) -> Expr:
    """1 where a == b, else 0."""
    return _binary("==", a, b)


def _apply(op: str, a: int, b: int) -> int:
    """Apply an operator as `src/npu/expression.cc` does. Raises DesignError if undefined."""
    if op in ("//", "%", "ceil") and b <= 0:
        raise DesignError(f"division by {b}: divisors must be positive")
    result = _result(op, a, b)
    if not -(1 << 63) <= result < 1 << 63:
        raise DesignError(f"{a} {op} {b} overflows 64 bits")
    return result


def _result(op: str, a: int, b: int) -> int:
    match op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//":
            return a // b
        case "%":
            return a % b
        case "ceil":
            return -(-a // b)
        case "min":
            return min(a, b)
        case "max":
            return max(a, b)
        case "<":
            return int(a < b)
        case "<=":
            return int(a <= b)
        case "==":
            return int(a == b)
    raise DesignError(f"unknown operator {op!r}; known: {', '.join(OPERATORS)}")


def evaluate(value: Json | Value, bindings: Mapping[str, int]) -> int:
    """Evaluate an expression (or its JSON) under `bindings`.

    Raises DesignError for a symbol that is not bound, a division by 0, and more than 64 bits.
    """
    tree = value.to_json() if isinstance(value, Expr) else value
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        if tree not in bindings:
            raise DesignError(f"symbol {tree!r} has no value; bound: {', '.join(bindings)}")
        return bindings[tree]
    op, left, right = tree
    return _apply(op, evaluate(left, bindings), evaluate(right, bindings))


@dataclass(frozen=True)
class Argument:
    """A host buffer of a run: `bytes` is the smallest size that covers every access of a run."""

    name: str
    direction: Literal["in", "out", "inout"]
    bytes: Expr


@dataclass(frozen=True)
class Transfer:
    """`run` bytes of an argument from byte `offset` on, over `outer`: (count, stride in bytes)."""

    fifo: str
    argument: str
    offset: int
    run: int
    outer: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Start:
    """Run-time parameters of a worker, and its lock."""

    worker: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class Wait:
    """Until all transfers on these fifos are complete, and so `everything`."""

    fifos: tuple[str, ...]
    everything: bool


Operation = Transfer | Start | Wait


@dataclass
class Sequence:
    """One entry point of a design: `name`, its integer `parameters`, and what it does.

    Call the methods in the order in which the device is to execute the statements:

        s = design.sequence("matvec", "N", "K")
        N, K = s.symbols()
        w = s.argument("w", "in", N * K)
        with s.loop("round", N // 512) as r:
            s.transfer("w0", w, offset=r * 512, run=2560, outer=[(K // 256, 5120)])
        s.start("dqp_0_0", K // 256, N // 512)
        s.wait("y0")
    """

    name: str
    parameters: tuple[str, ...]
    arguments: list[Argument] = field(default_factory=list)
    body: list[dict[str, Json]] = field(default_factory=list)
    _open: list[list[dict[str, Json]]] = field(default_factory=list, repr=False)

    def symbols(self) -> tuple[Expr, ...]:
        """The parameters as symbols, in order."""
        return tuple(symbol(name) for name in self.parameters)

    def _emit(self, statement: dict[str, Json]) -> None:
        (self._open[-1] if self._open else self.body).append(statement)

    def argument(self, name: str, direction: Literal["in", "out", "inout"], bytes: Value) -> str:
        """Declare a host buffer; the order of declaration is the order of the arguments."""
        self.arguments.append(Argument(name, direction, expr(bytes)))
        return name

    def argument_bytes(self, parameters: Mapping[str, int]) -> dict[str, int]:
        """The least size of every argument for a shape.

        Raises DesignError when a parameter has no value, or a value has no parameter.
        """
        if set(parameters) != set(self.parameters):
            raise DesignError(
                f"sequence {self.name} takes {', '.join(self.parameters)}; got "
                f"{', '.join(parameters) or 'nothing'}"
            )
        return {a.name: evaluate(a.bytes, parameters) for a in self.arguments}

    def let(self, name: str, value: Value) -> Expr:
        """Name a value, for the statements that follow."""
        self._emit({"let": name, "value": expr(value).to_json()})
        return symbol(name)

    def require(self, condition: Value, message: str) -> None:
        """Refuse a shape for which `condition` is 0; `{name}` in the message stands for a value."""
        self._emit({"require": expr(condition).to_json(), "message": message})

    @contextmanager
    def _block(self, statement: dict[str, Json]) -> Iterator[None]:
        self._emit(statement)
        self._open.append(statement["do"])
        try:
            yield
        finally:
            self._open.pop()

    @contextmanager
    def loop(self, index: str, count: Value) -> Iterator[Expr]:
        """Repeat the block's statements for `index` = 0 .. count - 1; never if count <= 0."""
        with self._block({"for": index, "count": expr(count).to_json(), "do": []}):
            yield symbol(index)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Execute the block's statements only if `condition` is not 0."""
        with self._block({"if": expr(condition).to_json(), "do": []}):
            yield

    def transfer(
        self,
        fifo: str,
        argument: str,
        *,
        offset: Value,
        run: Value,
        outer: list[tuple[Value, Value]] | None = None,
    ) -> None:
        """Move bytes between a buffer and the shim end of `fifo`, in the fifo's direction.

        The transfer starts at byte `offset` of the argument. It moves `run` contiguous bytes,
        repeated over the dimensions `outer`: (count, stride in bytes) pairs, outermost first. A
        stride of 0 repeats and is legal for the outermost dimension alone. Nothing moves when a
        count is 0.
        """
        self._emit(
            {
                "transfer": fifo,
                "argument": argument,
                "offset": expr(offset).to_json(),
                "run": expr(run).to_json(),
                "outer": [[expr(n).to_json(), expr(s).to_json()] for n, s in outer or []],
            }
        )

    def start(self, worker: str, *values: Value) -> None:
        """Write the run-time parameters of `worker` in their order, then start it once."""
        self._emit({"start": worker, "values": [expr(value).to_json() for value in values]})

    def wait(self, *fifos: str) -> None:
        """Wait until every transfer on these (outgoing) fifos has completed.

        The design guarantees that every transfer before this point is then complete: its cores
        cannot send their last output before they have received their last input. The simulator
        enforces this (a descriptor in use is never rewritten).
        """
        self._emit({"wait": list(fifos)})

    def arrive(self, *fifos: str) -> None:
        """Wait until every transfer on these (outgoing) fifos has completed, and those alone.

        Unlike after `wait`, transfers on other fifos may still be under way. What follows may read
        what these fifos have written.
        """
        self._emit({"arrive": list(fifos)})

    def work(self, cycles: Value) -> None:
        """Core cycles that the slowest tile is predicted to take until the next wait."""
        self._emit({"work": expr(cycles).to_json()})

    def cut(self) -> None:
        """Allow the stream to be divided into two runs here, right after a wait."""
        self._emit({"cut": True})

    def operations(self, shape: Mapping[str, int]) -> Iterator[Operation]:
        """What happens for a shape, in order; transfers of nothing are left out.

        Raises DesignError for a shape that the sequence refuses.
        """
        return _walk(self.body, dict(shape))

    def to_json(self) -> dict[str, Json]:
        """The sequence as the manifest carries it."""
        return {
            "parameters": list(self.parameters),
            "arguments": [
                {"name": a.name, "direction": a.direction, "bytes": a.bytes.to_json()}
                for a in self.arguments
            ],
            "body": self.body,
        }


def _walk(body: list[dict[str, Json]], values: dict[str, int]) -> Iterator[Operation]:
    for statement in body:
        match statement:
            case {"let": name, "value": value}:
                values[name] = evaluate(value, values)
            case {"require": condition, "message": message}:
                if not evaluate(condition, values):
                    raise DesignError(message.format(**values))
            case {"for": index, "count": count, "do": do}:
                for i in range(evaluate(count, values)):
                    yield from _walk(do, {**values, index: i})
            case {"if": condition, "do": do}:
                if evaluate(condition, values):
                    yield from _walk(do, dict(values))
            case {"transfer": fifo, "argument": argument, "offset": offset, "run": run}:
                outer = [(evaluate(n, values), evaluate(s, values)) for n, s in statement["outer"]]
                size = evaluate(run, values)
                if size > 0 and all(count > 0 for count, _ in outer):
                    yield Transfer(fifo, argument, evaluate(offset, values), size, tuple(outer))
            case {"start": worker, "values": given}:
                yield Start(worker, tuple(evaluate(v, values) for v in given))
            case {"wait": fifos}:
                yield Wait(tuple(fifos), everything=True)
            case {"arrive": fifos}:
                yield Wait(tuple(fifos), everything=False)
