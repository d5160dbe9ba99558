"""Which layout to use: one recommendation within limits, with its reason and its confidence.

Among the layouts that keep every limit, those within a tolerated loss of the best are acceptable;
of these the cheapest is recommended: the fastest decode, and where latencies cannot be told apart the
smallest KV cache. The same choice is made anew in many draws of what the data leave open, and the
share of draws that choose the same layout is the confidence.
"""

import re
from dataclasses import asdict, dataclass, field
from math import inf, isfinite, isnan, nan, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headcount.analysis import commands, statistics, uncertainty, verdicts
from headcount.analysis import evidence as evidence_
from headcount.analysis.arms import Arm
from headcount.analysis.evidence import Evidence
from headcount.analysis.serving import Serving, serving
from headcount.analysis.uncertainty import Draws
from headcount.analysis.verdicts import Judgement
from headcount.analysis.words import bytes_text, listed, millis, plus_minus
from headcount.errors import RequestError
from headcount.study.store import Study

SURE = 0.8
"""A choice that fewer of the draws make is not decided; the power asked of a study is the same."""

Status = Literal["recommended", "undecided", "infeasible", "no data"]


@dataclass(frozen=True)
class Limits:
    """What a layout must keep to. None: no limit; context and batch default to the headline's."""

    latency_ms: float | None = None
    """Median milliseconds of one decode step of the whole batch."""
    memory_bytes: float | None = None
    """Peak memory while decoding: weights, activations and the cache of `context` × `batch_size`."""
    kv_bytes: float | None = None
    """The KV cache of `context` × `batch_size`."""
    context: int | None = None
    batch_size: int | None = None
    hardware: str | None = None
    """Part of the name of a device that was measured."""
    tolerance: float | None = None
    """Loss above the best layout's (accuracy below it) that may be given for a lower cost; the
    metric's equivalence margin by default."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isinstance(value, int | float):
                continue
            least = "0 or more" if name == "tolerance" else "above 0"
            if not isfinite(value) or value < 0 or (value == 0 and name != "tolerance"):
                raise RequestError(f"{name}={value:g}: must be a number {least}")


@dataclass(frozen=True)
class Option:
    """One layout as a candidate; figures are None where they were not measured."""

    label: str
    n_heads: int
    n_kv_heads: int
    d_head: int
    quality: float | None
    quality_half_width: float | None
    """95%, for comparing layouts; None for one seed."""
    n_seeds: int
    decode_ms: float | None
    kv_bytes: float | None
    """Of the whole context and batch."""
    memory_bytes: float | None
    excluded: list[str]
    """Why it is no candidate; empty where it is one."""
    acceptable: bool
    """Within the tolerated loss of the best candidate."""
    chosen_share: float
    """Share of the draws that choose it."""


@dataclass(frozen=True)
class Recommendation:
    """One answer. `to_json` and `words` say the same."""

    study: str
    condition: str
    status: Status
    choice: str | None
    """The layout's label: recommended, or where undecided the likeliest."""
    runner_up: str | None
    confidence: float | None
    """Share of draws that make this choice; None where one seed leaves the spread unknown."""
    reason: str
    would_change: list[str]
    caveats: list[str]
    commands: list[str]
    """Commands that would decide what is open."""
    metric: str
    unit: str
    """Of the metric, of the options' qualities and of the tolerance; empty for an accuracy."""
    tolerance: float
    """How far behind the best candidate a layout may lie."""
    limits: Limits
    at: str
    """Where costs were taken: context, batch, dtype, device."""
    options: list[Option] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return asdict(self)

    @property
    def words(self) -> str:
        """The answer for a terminal, most important first."""
        heading = {
            "recommended": f"Use {self.choice}.",
            "undecided": "The data cannot decide."
            + (f" Likeliest: {self.choice}." if self.choice else ""),
            "infeasible": "No layout keeps the limits.",
            "no data": "There is nothing to recommend from.",
        }[self.status]
        lines = [heading, self.reason]
        if self.runner_up:
            lines.append(f"Runner-up: {self.runner_up}.")
        if self.confidence is not None:
            lines.append(
                f"Confidence: {self.confidence:.0%} of the draws from what seeds and timings leave "
                "open make this choice."
            )
        for title, items in (
            ("What would change it", self.would_change),
            ("Mind", self.caveats),
            ("This would decide it", self.commands),
        ):
            if items:
                lines += [f"{title}:", *(f"  {item}" for item in items)]
        return "\n".join(lines)


def bytes_of(option: str, text: str) -> float:
    """Bytes from `512MiB`, `2GB` or a plain number; RequestError, naming the option, for anything
    else."""
    match = re.fullmatch(r"\s*([\d.]+)\s*(?:([kKMGT])(i?))?[bB]?\s*", text)
    try:
        number = float(match[1]) if match else nan
    except ValueError:
        number = nan
    if match is None or isnan(number):
        raise RequestError(f"{option}={text}: not a size; valid: 512MiB, 2GB, 1000000")
    power = " kMGT".index((match[2] or " ").replace("K", "k"))
    return number * float((1024 if match[3] else 1000) ** power)


def recommend(
    study: Study, limits: Limits | None = None, *, condition: str | None = None
) -> Recommendation:
    """One recommendation from a study's records. condition: where a study varies more than the
    layout, one of `Evidence.conditions`; the one with most runs by default.

    Raises RequestError for a condition or hardware that the study lacks.
    """
    evidence = evidence_.load(study)
    if condition is not None and condition not in evidence.conditions:
        raise RequestError(
            f"condition={condition}: no such condition; "
            f"valid: {listed(evidence.conditions, most=30)}"
        )
    return from_judgement(evidence, verdicts.judge(evidence, condition), limits or Limits())


def from_judgement(evidence: Evidence, judgement: Judgement, limits: Limits) -> Recommendation:
    """As `recommend`, from records that were read and compared already."""
    return _Choice(evidence, judgement, limits).answer()


class _Choice:
    """The layouts of one condition under some limits; `answer` makes the recommendation."""

    def __init__(self, evidence: Evidence, judgement: Judgement, limits: Limits) -> None:
        self.evidence, self.judgement, self.limits = evidence, judgement, limits
        self.arms = evidence.arms_of(judgement.condition)
        self.labels = [a.label for a in self.arms]
        self.tolerance = judgement.margin if limits.tolerance is None else limits.tolerance
        self.serving: Serving = serving(
            self.arms, limits.context, limits.batch_size, limits.hardware
        )
        self.latency = self.serving.latency
        self.quality = judgement.metric.sign * np.array([a.mean for a in self.arms])
        # Without timings the choice is by quality and cache, without any cost record by quality alone.
        self.by_cost = bool(np.isfinite(self.latency).any())
        self.by_cache = bool(np.isfinite(self.serving.kv).any())
        self.unit = f" {judgement.metric.unit}".rstrip()
        excluded = [self._excluded(i) for i in range(len(self.arms))]
        self.able = np.array([not e for e in excluded], dtype=bool)
        """Arms that keep the limits which no draw can move: all but the one on latency."""
        self.excluded = [e + self._too_slow(i) for i, e in enumerate(excluded)]
        self.candidates = [i for i, e in enumerate(self.excluded) if not e]

    # -- choosing --------------------------------------------------------------------------------

    def _excluded(self, i: int) -> list[str]:
        """Why an arm is no candidate, latency aside."""
        arm, limits = self.arms[i], self.limits
        if not len(arm.values):
            return [f"no completed run ({listed(f'{n} {s}' for s, n in arm.statuses.items())})"]
        if self.by_cost and self.serving.timings[i] is None:
            return ["not measured"]
        if self.by_cache and isnan(self.serving.kv[i]):
            return ["its cache was not measured"]
        found = []
        for limit, value, what in (
            (limits.memory_bytes, self.serving.memory[i], "memory"),
            (limits.kv_bytes, self.serving.kv[i], "KV cache"),
        ):
            if limit is not None and value > limit:
                found.append(f"{what} is {bytes_text(value)}, limit {bytes_text(limit)}")
        return found

    def _too_slow(self, i: int) -> list[str]:
        limit, ms = self.limits.latency_ms, self.latency[i]
        if limit is None or not ms > limit:
            return []
        return [f"decode takes {millis(ms)} ms, limit {millis(limit)} ms"]

    def _choose(
        self, quality: NDArray[Any], latency: NDArray[Any], able: NDArray[np.bool_]
    ) -> NDArray[np.intp]:
        """The choice in each draw, (draws,); −1 where no arm keeps the limits.

        quality, latency: (draws, arms). able: (arms,).
        """
        left = able[None, :] & ~np.isnan(quality)
        if self.limits.latency_ms is not None:
            left = left & (latency <= self.limits.latency_ms)
        any_left = left.any(axis=1)
        q = np.where(left, quality, inf)
        left = left & (q <= q.min(axis=1, keepdims=True) + self.tolerance)
        if self.by_cost:
            ms = np.where(left, latency, inf)
            left = left & (ms <= ms.min(axis=1, keepdims=True) * (1 + self.serving.floor))
        if self.by_cache:
            kv = np.where(left, self.serving.kv, inf)
            left = left & (kv <= kv.min(axis=1, keepdims=True))
        return np.where(any_left, np.argmin(np.where(left, q, inf), axis=1), -1)

    def _ranked(self) -> list[int]:
        """Candidates, each the choice once those before it are gone."""
        able, ranked = self.able.copy(), []
        while (i := int(self._choose(self.quality[None], self.latency[None], able)[0])) >= 0:
            if not able[i]:
                break
            ranked.append(i)
            able[i] = False
        return ranked

    def answer(self) -> Recommendation:
        if not any(len(a.values) for a in self.arms):
            return self._result("no data", "No run has completed.")
        timed = self.limits.latency_ms is not None or self.limits.memory_bytes is not None
        if (timed and not self.by_cost) or (self.limits.kv_bytes is not None and not self.by_cache):
            return self._result(
                "undecided",
                "The limits cannot be checked: "
                f"{self.serving.missing or 'no layout has a cost record'}.",
                commands=self._measure([a for a in self.arms if len(a.values)]),
            )
        if not self.candidates:
            return self._result("infeasible", self._infeasible())
        return self._decide()

    def _decide(self) -> Recommendation:
        ranked = self._ranked()
        pick = ranked[0]
        draws = uncertainty.draw(self.arms, self.judgement, self.serving.timings)
        chosen = self._choose(draws.quality, draws.latency, self.able)
        shares = np.array([(chosen == i).mean() for i in range(len(self.arms))])
        rivals = [int(i) for i in np.argsort(-shares, kind="stable") if i != pick and shares[i]]
        runner = next(iter(rivals + ranked[1:]), None)
        known = bool(self.judgement.df)
        reason = self._reason(pick)
        confidence = float(shares[pick])
        if runner is not None and known and self._alike(pick, runner, draws):
            confidence += float(shares[runner])
            reason += (
                f" {self.labels[runner]} would do as well: the two differ in quality by less than is "
                f"tolerated{', cannot be told apart in latency' * self.by_cost}"
                f"{', and they need the same cache' * self.by_cache}."
            )
        status: Status = "recommended"
        then: list[str] = []
        if runner is not None and not known:
            status = "undecided"
            reason = f"One seed has no spread, so no difference in quality can be judged. {reason}"
            then = commands.train(self.evidence, [self.arms[pick], self.arms[runner]], 2)
        elif runner is not None and confidence < SURE:
            status = "undecided"
            # Were the timings exact, would it be decided?
            exact = np.broadcast_to(self.latency, draws.latency.shape)
            timings = (self._choose(draws.quality, exact, self.able) == pick).mean() >= SURE
            cause = "The timings are too noisy" if timings else "The seeds are too few"
            reason = (
                f"{cause} to choose between {self.labels[pick]} ({shares[pick]:.0%} of the draws) "
                f"and {self.labels[runner]} ({shares[runner]:.0%}). {reason}"
            )
            both = [self.arms[pick], self.arms[runner]]
            then = (
                self._measure(both, 4)
                if timings
                else commands.train(self.evidence, both, self._more(pick, runner))
            )
        return self._result(
            status,
            reason,
            choice=self.labels[pick],
            runner_up=None if runner is None else self.labels[runner],
            confidence=confidence if known or runner is None else None,
            would_change=self._would_change(pick),
            commands=then,
            shares=shares,
        )

    @property
    def acceptable(self) -> list[int]:
        """Candidates within the tolerated loss of the best."""
        best = min((self.quality[i] for i in self.candidates), default=nan)
        return [i for i in self.candidates if self.quality[i] <= best + self.tolerance]

    def _alike(self, a: int, b: int, draws: Draws) -> bool:
        """Whether it does not matter which of the two is taken."""
        close = np.abs(draws.quality[:, a] - draws.quality[:, b]) <= self.tolerance
        if close.mean() < 0.95:
            return False
        if self.by_cache and self.serving.kv[a] != self.serving.kv[b]:
            return False
        low, high = sorted((self.latency[a], self.latency[b]))
        return not self.by_cost or bool(high <= low * (1 + self.serving.floor))

    def _more(self, a: int, b: int) -> int:
        """Seeds to add so that the two are told from the edge of the tolerance, on either side.

        Where one lies on the edge no number of seeds would; half the tolerance is near enough.
        """
        best = min(self.quality[i] for i in self.candidates)
        tolerance = self.tolerance or self.judgement.margin
        edge = min(abs(self.quality[i] - best - tolerance) for i in (a, b))
        needed = statistics.paired_seeds_needed(
            sqrt(self.judgement.spread.of(a)[0] + self.judgement.spread.of(b)[0]),
            max(edge, tolerance / 2),
            margin=0,
            n_layouts=sum(bool(len(arm.values)) for arm in self.arms),
        )
        have = min(len(self.arms[a].seeds), len(self.arms[b].seeds))
        return max(1, (needed or statistics.MOST_SEEDS) - have)

    def _measure(self, arms: list[Arm], factor: int | None = None) -> list[str]:
        """The commands that measure some arms; with `factor` times the repeats."""
        timing = next((t for t in self.serving.timings if t), None)
        repeats = factor * len(timing[1].samples_ms) if factor and timing else None
        return commands.measure(
            self.evidence, arms, self.limits.context, self.limits.batch_size, repeats
        )

    # -- words -----------------------------------------------------------------------------------

    def _gap(self, i: int, to: int) -> str:
        """How far apart two arms are in quality."""
        return f"{abs(self.quality[i] - self.quality[to]):.2g}{self.unit}"

    def _reason(self, pick: int) -> str:
        metric, arm = self.judgement.metric, self.arms[pick]
        half = self.judgement.bar(arm)
        what_for = " (95%, for comparing layouts)" if half and isfinite(half) else ""
        text = (
            f"{arm.label}: {metric.name} {plus_minus(arm.mean, half or inf)}{self.unit}{what_for}"
        )
        if self.by_cost:
            text += (
                f", decode {millis(self.latency[pick])} ms, KV cache "
                f"{bytes_text(self.serving.kv[pick])}, memory "
                f"{bytes_text(self.serving.memory[pick])} ({self.serving.at})"
            )
        elif self.by_cache:
            text += f", KV cache {bytes_text(self.serving.kv[pick])} ({self.serving.at})"
        best = min(self.candidates, key=lambda i: self.quality[i])
        if len(self.candidates) == 1:
            only = len(self.arms) == 1
            return f"{text}. It is the only layout{'' if only else ' that can be chosen'}."
        if not self.by_cache:
            return f"{text}. It has the best mean, and without costs nothing else counts."
        if len(self.acceptable) == 1:
            return f"{text}. No other candidate comes within {self.tolerance:g}{self.unit} of it."
        if pick == best:
            return f"{text}. It has the best mean of the candidates, and none as good is cheaper."
        return (
            f"{text}. It is {self._gap(pick, best)} behind the best candidate, {self.labels[best]}, "
            f"within the tolerated {self.tolerance:g}{self.unit}, and the cheapest of the "
            f"{len(self.acceptable)} layouts that are."
        )

    def _would_change(self, pick: int) -> list[str]:
        """The limits and the tolerance at which another layout would be chosen."""
        lines = []
        kept_out = [
            i
            for i in range(len(self.arms))
            if self.excluded[i] and self.quality[i] < self.quality[pick] - self.tolerance
        ]
        if kept_out:
            i = min(kept_out, key=lambda j: self.quality[j])
            lines.append(
                f"{self.labels[i]} would be {self._gap(pick, i)} better, but: "
                f"{listed(self.excluded[i])}"
            )
        if not self.by_cache:
            return lines
        best = min(self.candidates, key=lambda i: self.quality[i])
        if pick != best:
            lines.append(
                f"tolerating less than {self._gap(pick, best)} rules {self.labels[pick]} out"
            )
        cheaper = [
            i
            for i in self.candidates
            if self.by_cost
            and i not in self.acceptable
            and self.latency[i] * (1 + self.serving.floor) < self.latency[pick]
        ]
        if cheaper:
            i = min(cheaper, key=lambda j: self.quality[j])
            lines.append(
                f"tolerating {self._gap(i, best)} allows {self.labels[i]} at "
                f"{millis(self.latency[i])} ms"
            )
        return lines

    def _infeasible(self) -> str:
        """The limits that nothing keeps, or where each keeps out some, what keeps out each layout."""
        limits, costs = self.limits, self.serving
        parts = []
        for limit, values, what, text in (
            (limits.latency_ms, costs.latency, "decode takes", lambda v: f"{millis(v)} ms"),
            (limits.memory_bytes, costs.memory, "memory is", bytes_text),
            (limits.kv_bytes, costs.kv, "KV cache is", bytes_text),
        ):
            if limit is not None and np.nanmin(values) > limit:
                i = int(np.nanargmin(values))
                parts.append(
                    f"{what} {text(values[i])} at least ({self.labels[i]}), the limit is {text(limit)}"
                )
        parts = parts or [
            f"{label}: {listed(e)}" for label, e in zip(self.labels, self.excluded, strict=True)
        ]
        return f"{'; '.join(parts)} ({costs.at})."

    def _caveats(self) -> list[str]:
        """What this choice could not look at, and the study's warnings."""
        found = [self.serving.missing] if self.serving.missing else []
        unmeasured = [
            label
            for label, arm, timing in zip(self.labels, self.arms, self.serving.timings, strict=True)
            if timing is None and len(arm.values)
        ]
        if self.by_cost and unmeasured:
            found.append(f"not measured, so no candidate: {listed(unmeasured)}")
        elif unmeasured and not found:
            found.append("no cost record: the choice is by quality alone")
        elif self.by_cache:
            cacheless = [
                arm.label
                for arm, kv in zip(self.arms, self.serving.kv, strict=True)
                if isnan(kv) and len(arm.values)
            ]
            if cacheless:
                found.append(f"cache not measured, so no candidate: {listed(cacheless)}")
        if self.serving.floor:
            found.append(f"latencies within {self.serving.floor:.0%} of each other count as equal")
        return [*found, *self.evidence.warnings]

    def _result(
        self,
        status: Status,
        reason: str,
        *,
        choice: str | None = None,
        runner_up: str | None = None,
        confidence: float | None = None,
        would_change: list[str] | None = None,
        commands: list[str] | None = None,
        shares: NDArray[Any] | None = None,
    ) -> Recommendation:
        acceptable = self.acceptable if choice else []
        return Recommendation(
            study=self.evidence.study.name,
            condition=self.judgement.condition,
            status=status,
            choice=choice,
            runner_up=runner_up,
            confidence=confidence,
            reason=reason,
            would_change=would_change or [],
            caveats=self._caveats(),
            commands=commands or [],
            metric=self.judgement.metric.key,
            unit=self.judgement.metric.unit,
            tolerance=self.tolerance,
            limits=self.limits,
            at=self.serving.at,
            options=[
                Option(
                    label=arm.label,
                    n_heads=arm.layout.n_heads,
                    n_kv_heads=arm.layout.n_kv_heads,
                    d_head=arm.layout.d_head,
                    quality=_plain(arm.mean),
                    quality_half_width=self.judgement.bar(arm) or None,
                    n_seeds=len(arm.seeds),
                    decode_ms=_plain(self.latency[i]),
                    kv_bytes=_plain(self.serving.kv[i]),
                    memory_bytes=_plain(self.serving.memory[i]),
                    excluded=self.excluded[i],
                    acceptable=i in acceptable,
                    chosen_share=0.0 if shares is None else round(float(shares[i]), 4),
                )
                for i, arm in enumerate(self.arms)
            ],
        )


def _plain(value: float) -> float | None:
    return float(value) if isfinite(value) else None
