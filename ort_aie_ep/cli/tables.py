"""Reports as tables for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from ort_aie_ep.cli.console import environment
from ort_aie_ep.cli.progress import amount
from ort_aie_ep.compiler.cache_entries import Entry
from ort_aie_ep.compiler.calibration import CacheReport
from ort_aie_ep.disk import size_text
from ort_aie_ep.explain.doctor import Diagnosis
from ort_aie_ep.explain.explain import CLAIMS, CPU_EP, OURS, Explanation, NodeFate
from ort_aie_ep.explain.tune import Tuning
from ort_aie_ep.graph_passes import Divider, LayerError, NodeOutcome, PlanSteps
from ort_aie_ep.machine import Finding
from ort_aie_ep.models.integrity import CheckedFile
from ort_aie_ep.models.shapes import Shape
from ort_aie_ep.tools.bench.accuracy import AccuracyReport
from ort_aie_ep.tools.bench.agreement import Agreement
from ort_aie_ep.tools.bench.bench import Comparison
from ort_aie_ep.tools.bench.demo import Demonstration
from ort_aie_ep.tools.bench.several_rows import SEQUENCES, SHAPES, Batches
from ort_aie_ep.tools.bench.statistics import Interval, median

_BODY = ["in"]  # a column of models with If, Loop or Scan
_PLAN = ["plan"]  # and of models with several of them
_WORK = ["weights", "token reads"]  # graph_passes/work.py
_KINDS = 4  # the number of kinds that are named one by one


def outcomes_table(outcomes: Iterable[NodeOutcome]) -> Table:
    """What the compiler made of the nodes that it looked at or that have weights, and the body of
    each that is in one."""
    alike: dict[tuple[str, str, str | None, str], list[NodeOutcome]] = {}
    for outcome in outcomes:
        kind = (outcome.op_type, outcome.body, outcome.becomes, outcome.reason)
        alike.setdefault(kind, []).append(outcome)
    bodies = any(body for _, body, _, _ in alike)
    columns = ("op", "count", *_BODY[:bodies], *_WORK, "becomes", "why not")
    table = _table(*columns, right={"count", *_WORK})
    whole = sum(o.token_bytes for nodes in alike.values() for o in nodes)
    for (op, body, becomes, reason), nodes in alike.items():
        work = _work(sum(o.weight_bytes for o in nodes), sum(o.token_bytes for o in nodes), whole)
        row = [op, str(len(nodes)), *[body][:bodies], *work]
        table.add_row(*map(Text, [*row, becomes or "stays on the CPU EP", reason]))
    return table


def share_line(nodes: Iterable[NodeOutcome | NodeFate]) -> str:
    """The share of a token's bytes that stays on the CPU EP; empty without weights."""
    nodes = list(nodes)
    whole = sum(node.token_bytes for node in nodes)
    left = sum(node.token_bytes for node in nodes if _stays(node))
    if not whole:
        return ""
    return (
        f"{_share(left, whole)} of the bytes of weights and states that a token reads stay on the "
        "CPU EP"
    )


def _stays(node: NodeOutcome | NodeFate) -> bool:
    return node.runs == CPU_EP if isinstance(node, NodeFate) else not node.becomes


def _work(weight_bytes: int, token_bytes: int, whole: int) -> list[str]:
    """The cells of the columns _WORK."""
    size = f"{weight_bytes / 1e6:.1f} MB" if weight_bytes >= 1e5 else f"{weight_bytes / 1e3:.1f} kB"
    return [size if weight_bytes else "", _share(token_bytes, whole) if token_bytes else ""]


def _share(part: int, whole: int) -> str:
    return "< 0.1 %" if 0 < part < whole / 2000 else f"{part / whole:.1%}".replace("%", " %")


def layers_table(layers: Sequence[LayerError]) -> Table:
    """The error of each layer's weights; the largest errors are highlighted."""
    numbers = ("K", "N", "RMS error", "largest error")
    table = _table("layer", "format", *numbers, right=numbers)
    worst = sorted((layer.relative for layer in layers), reverse=True)[: len(layers) // 10 + 1][-1]
    for layer in layers:
        more = f" and {layer.nodes - 1} more" if layer.nodes > 1 else ""
        table.add_row(
            Text(layer.node + more),
            layer.form,
            str(layer.k),
            str(layer.n),
            f"{layer.relative:.3%}",
            f"{layer.largest:.3g}",
            style="bold yellow" if layer.relative >= worst > 0 and len(layers) > 1 else None,
        )
    return table


def cache_lines(cache: CacheReport) -> str:
    """The errors of a quantised KV cache, and the layer with the largest."""
    lines = [
        f"{cache.kv} KV cache, scales from {cache.tokens} tokens of {cache.text}; relative errors "
        "on other tokens of it:"
    ]
    for what, errors in cache.errors().items():
        layer, most = max(errors.items(), key=lambda item: item[1])
        mean = sum(errors.values()) / len(errors)
        lines.append(f"{what} {mean:.2%} on average over layers, {most:.2%} at most ({layer})")
    if cache.left:
        lines.append(
            "not quantised, because their attention stays on the CPU EP: " + ", ".join(cache.left)
        )
    return "\n".join(lines)


def cache_table(entries: Sequence[Entry], code: str) -> Table:
    """The entries of a cache; `code` identifies the entries of this version."""
    table = _table("model", "options", "size", "last used", "state", right={"size"})
    for entry in entries:
        options = " ".join(f"{name}={value}" for name, value in entry.choices.items())
        used = datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M")
        if entry.in_use:
            state = "in use"
        elif not entry.source:
            state = "broken"
        else:
            state = "" if entry.code == code else "from another version"
        table.add_row(*map(Text, (entry.source, options, size_text(entry.bytes), used, state)))
    return table


def facts_table(facts: Mapping[str, str]) -> Table:
    """Names and values, one below the other."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, Text(value))
    return table


def explanation_table(explanation: Explanation, each_node: bool) -> Table:
    """A row for each group of similar nodes, or for each node."""
    bodies = any(node.body for node in explanation.nodes)
    plans = each_node and len(explanation.plans) > 1
    table = _table(
        *(["node", "op"] if each_node else ["op", "count"]),
        *_BODY[:bodies],
        *_PLAN[:plans],
        *_WORK,
        "runs on" if explanation.compiled else "would run as",
        *(["execution provider"] if explanation.provider else []),
        "why not on the NPU",
        right={"count", *_PLAN, *_WORK},
    )
    whole = sum(node.token_bytes for node in explanation.nodes)
    rows = [(1, n) for n in explanation.nodes] if each_node else explanation.rows()
    for count, fate in rows:
        op = fate.op.removeprefix("com.microsoft.")
        first = [*([fate.node, op] if each_node else [op, str(count)]), *[fate.body][:bodies]]
        first += [fate.plan.rpartition(".")[2]][:plans]
        first += _work(fate.weight_bytes, fate.token_bytes, whole)
        provider = [_provider_cell(fate)] if explanation.provider else []
        cells = map(Text, [*first, fate.becomes or fate.runs, *provider, fate.not_npu])
        table.add_row(*cells, style=None if fate.runs in OURS else "dim")
    return table


def explanation_lines(explanation: Explanation) -> list[str]:
    """What a table or a drawing does not tell: counts, plans, shares."""
    lines = [
        f"{placement_line(explanation.nodes)}; ONNX Runtime may fuse some of the CPU EP's nodes "
        "when it loads the model"
    ]
    if explanation.plans:
        lines.append(plans_line(explanation.plans, explanation.divided_by))
    elif explanation.compiled:
        lines.append("no plans: each operator is a separate node, as --no-plan writes it")
    if explanation.not_whole:
        lines.append(f"a token's layers do not run whole on fused_layer: {explanation.not_whole}")
    if share := share_line(explanation.nodes):
        lines.append(share)
    if explanation.forms:
        each = (f"{size_text(size)} with {form}" for form, size in explanation.forms)
        lines.append(f"packed weights: {'; '.join(each)}")
    lines += [f"not one step: {what} ({count} times)" for what, count in explanation.apart]
    lines += [f"widened for the NPU: {form}: {why}" for form, why in explanation.widened]
    if pages := explanation.pages:
        lines.append(f"{pages.name}: {pages.found or pages.remedy}")
    if explanation.provider:
        lines.append(provider_line(explanation))
    return lines


def _provider_cell(fate: NodeFate) -> str:
    """What the execution provider does, and its reason if the passes have another."""
    if fate.provider_reason in ("", fate.not_npu):
        return fate.provider
    return f"{fate.provider}: {fate.provider_reason}"


def plans_line(plans: Sequence[PlanSteps], divided_by: Sequence[Divider]) -> str:
    """The number of plans and their steps, and the nodes that divide them."""
    steps = [len(plan.steps) for plan in plans]
    line = f"{_counted(len(plans), 'plan')} of {_steps(steps)}"
    if bodies := sum(bool(plan.body) for plan in plans):
        line += f", {bodies} in bodies of If, Loop or Scan"
    kinds = Counter((d.op.removeprefix("com.microsoft."), d.reason) for d in divided_by)
    dividers = [f"{count} {op} ({reason})" for (op, reason), count in kinds.most_common()]
    if len(dividers) > _KINDS + 1:
        dividers[_KINDS:] = [f"{len(dividers) - _KINDS} other kinds of nodes"]
    if dividers:
        line += f"; divided by ONNX Runtime's nodes: {_listed(dividers)}"
    return line


def provider_line(explanation: Explanation) -> str:
    """How many nodes the execution provider claims."""
    claimed = sum(node.provider == CLAIMS for node in explanation.nodes)
    line = f"without compiling, the execution provider claims {_counted(claimed, 'node')}"
    plans = len(explanation.provider_plans)
    return f"{line}, as {_counted(plans, 'plan')}" if plans else line


def _steps(steps: Sequence[int]) -> str:
    if len(steps) > _KINDS:
        least, most = min(steps), max(steps)
        return f"{least} to {most} steps" if least < most else f"{_counted(most, 'step')} each"
    return f"{_listed(list(map(str, steps)))} step{'s' * (list(steps) != [1])}"


def _listed(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def placement_line(nodes: Iterable[NodeFate]) -> str:
    """The number of nodes that run in each place."""
    counts = Counter(node.runs for node in nodes)
    return "nodes: " + ", ".join(f"{count} {where}" for where, count in counts.most_common())


def tuning_table(tuning: Tuning) -> Table:
    """The variants of each role, with the chosen ones in green."""
    table = _table("role", "variant", "ms", "GB/s", "of read", "", right={"ms", "GB/s", "of read"})
    role = ""
    for trial in tuning.trials:
        if role and trial.role != role:
            table.add_section()
        rate = trial.bandwidth
        table.add_row(
            trial.role if trial.role != role else "",
            trial.variant,
            f"{trial.seconds * 1e3:.2f}",
            f"{rate / 1e9:.1f}" if rate else "",
            f"{100 * rate / trial.read:.0f} %" if rate else "",
            ", ".join(["chosen"] * trial.chosen + ["rule"] * trial.rule),
            style="green" if trial.chosen else None,
        )
        role = trial.role
    return table


def diagnosis_table(diagnosis: Diagnosis) -> RenderableType:
    """Three tables, and one for files that were checked; each missing item says how to get it."""
    parts: list[RenderableType] = []
    sections = (
        ("Software", _found(diagnosis.software)),
        ("Host target", _found(diagnosis.host)),
        ("NPU", _found(diagnosis.npu)),
        ("Compiled files", [(file.name, _checked(file)) for file in diagnosis.files]),
    )
    for title, rows in sections:
        if not rows:
            continue
        table = Table(title=title, title_justify="left", title_style="bold", box=None)
        table.add_column(min_width=24)
        table.add_column(overflow="fold")
        for row in rows:
            table.add_row(*row)
        parts += [table, ""]
    return Group(*parts)


def speed_table(comparisons: Iterable[Comparison], against: str = CPU_EP) -> Table:
    """The medians of both engines and their ratio, or those of a model alone."""
    others = [f"{against}, tok/s", "ratio"] if against else []
    numbers = ["context", "ort_aie_ep, tok/s", *others, "least to most"]
    table = _table("phase", *numbers, right=numbers)
    for c in comparisons:
        bounds = f"{c.ours.least:.1f} to {c.ours.most:.1f}"
        cells: list[str | Text] = [c.phase, str(c.length), f"{c.ours.median:.1f}"]
        if c.reference is not None and (ratio := c.ratio) is not None:
            style = "bold green" if ratio.median > 1 else "bold yellow"
            cells += [f"{c.reference.median:.1f}", Text(f"{ratio.median:.2f}", style=style)]
            bounds = f"{ratio.least:.2f} to {ratio.most:.2f}"
        table.add_row(*cells, bounds)
    return table


def agreement_lines(agreement: Agreement) -> Text:
    """The agreement, in sentences."""
    count = len(agreement.continuation)
    text = Text(
        f"Logits at {agreement.positions} positions: largest difference "
        f"{agreement.largest_difference:.3g} (largest logit {agreement.largest_logit:.3g}), "
        f"the likeliest token is the same at {agreement.top1:.1%} of them.\n"
    )
    if agreement.gap is None:
        return text.append(f"Greedy text: the same {count} tokens.")
    text.append(
        f"Greedy text: the same {agreement.same_tokens} of {count} tokens; at the next one the CPU "
        f"EP's two best logits are {agreement.gap:.3g} apart, "
    )
    if agreement.near_tie:
        return text.append(
            f"a near-tie: differences at other positions allow up to {agreement.tolerance:.3g}."
        )
    return text.append(
        f"more than the {agreement.tolerance:.3g} that differences at other positions allow.",
        style="red",
    )


def accuracy_tables(report: AccuracyReport) -> RenderableType:
    """A row for each variant, in one table for whole windows and one for single tokens."""
    titles = {
        "prefill": f"Windows of {report.window} tokens in one pass",
        "decode": f"Windows of {report.window} tokens, token by token",
    }
    numbers = ("perplexity (95 %)", "ratio (95 %)", "top-1", "|diff|")
    parts = []
    for mode, title in titles.items():
        scores = [score for score in report.scores if score.mode == mode]
        if not scores:
            continue
        table = _table("variant", *numbers, right=numbers)
        table.title = f"{title}: {scores[0].tokens} tokens scored"
        table.title_justify, table.title_style = "left", "bold"
        for score in scores:
            table.add_row(
                score.variant,
                _interval(score.perplexity, ".2f"),
                _interval(score.ratio, ".4f"),
                f"{score.top1:.2%}",
                f"{score.largest_difference:.3f}",
            )
        parts.append(table)
    return Group(*parts)


def demonstration_panels(prompt: str, demonstration: Demonstration) -> RenderableType:
    """Both texts, each in a frame."""
    return Group(
        *(
            Panel(
                Syntax(prompt + text, "python", theme="ansi_dark", background_color="default"),
                title=title,
                title_align="left",
                border_style=style,
            )
            for title, text, style in (
                ("ONNX Runtime alone", demonstration.reference_text, "blue"),
                ("ONNX Runtime with ort_aie_ep", demonstration.our_text, "green"),
            )
        )
    )


def shapes_table(shapes: Mapping[str, Shape]) -> Table:
    """The shapes that `synth` knows by name."""
    numbers = ("layers", "hidden", "ffn", "heads", "vocab")
    table = _table("shape", "graph", *numbers, right=numbers)
    for name, shape in shapes.items():
        table.add_row(name, shape.family, *(str(getattr(shape, number)) for number in numbers))
    return table


def batches_table(measured: Batches) -> Table:
    """The cost of several rows in a call, in calls with one row."""
    sizes = [n for n in next(iter(measured.seconds.values()))[SEQUENCES] if n > 1]
    numbers = ("n = 1, ms", *(f"n = {n}" for n in sizes))
    table = _table("cost in calls with one row", *numbers, right=numbers)
    for engine, found in measured.seconds.items():
        for shape in SHAPES:
            one = median([seconds * 1e3 for seconds in found[shape][1]])
            costs = [one, *(measured.cost(engine, shape, n) for n in sizes)]
            table.add_row(f"{engine}, n {shape}", *(_interval(cost, ".2f") for cost in costs))
    return table


def conditions_line(threads: int | None) -> str:
    """The conditions of a measurement; the kernels are on a line of their own."""
    e = environment()
    count = "ONNX Runtime's choice of threads" if threads is None else f"{threads} threads each"
    return (
        f"{e['cpu']}, {count}, ONNX Runtime {e['onnxruntime']}, ort_aie_ep {e['ort_aie_ep']}\n"
        f"kernels: {e['kernels']}"
    )


def _table(*columns: str, right: Iterable[str]) -> Table:
    """An empty table, whose text columns wrap in a narrow terminal; numbers never wrap."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for column in columns:
        number = column in right
        table.add_column(
            column, justify="right" if number else "left", overflow="fold", no_wrap=number
        )
    return table


def _interval(interval: Interval, digits: str) -> str:
    value, low, high = (format(x, digits) for x in (interval.value, interval.low, interval.high))
    return value if low == high else f"{value} ({low}–{high})"


def _found(findings: Iterable[Finding]) -> list[tuple[str, Text]]:
    return [(finding.name, _finding(finding)) for finding in findings]


def _checked(file: CheckedFile) -> Text:
    if file.problem:
        return Text(file.problem, style="red")
    return Text(f"{amount(file.size, 0, 'bytes')}, as it was compiled", style="green")


def _finding(finding: Finding) -> Text:
    if finding.found:
        return Text(finding.found, style="green")
    text = Text("not found", style="yellow")
    return text.append(f": {finding.remedy}", style="default") if finding.remedy else text
