"""`allennlp worth-it`: trains plain networks beside a config, and says which to ship at each speed."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from beem_plugin.common.errors import ConfigurationError, check_least
from beem_plugin.common.files import atomic_write, write_json
from beem_plugin.common.params import load_config_dict
from beem_plugin.common.registry import Params
from beem_plugin.comparison.ablation.ablate import STATE_NAME, check_directory, say
from beem_plugin.comparison.ablation.launcher import Launcher
from beem_plugin.comparison.ablation.trainings import file_name, remember
from beem_plugin.comparison.ablation.variants import check_variants
from beem_plugin.comparison.exit_choice import choose_depth, choose_exits
from beem_plugin.comparison.plain_networks import encoder_of, full_depth, right_of_last_exit
from beem_plugin.comparison.policy_files import errors_at, load_policies
from beem_plugin.comparison.worth_it.networks import Networks
from beem_plugin.comparison.worth_it.result import WorthIt, trade_off
from beem_plugin.comparison.worth_it.seconds import measure_options
from beem_plugin.comparison.worth_it.trainings import EXITS, Plan
from beem_plugin.comparison.worth_it.verdicts import LAYERS, SPEEDS, Seconds, Verdict, choose_options, judge
from beem_plugin.evaluation.benchmark import machine
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models.model import Model
from beem_plugin.rendering.plots import plots_available, save_figure

DEFAULT_RULES = ("max_probability", "expected_gain")
CHOSEN_EXITS = 3
REPEATS = 3


def worth_it_from_args(args: argparse.Namespace) -> int:
    """Runs the command; `args` as `commands/worth_it.py` parses them. 1 if a training failed."""
    check_least(args, 1, "seeds", "jobs")
    if args.by != LAYERS and not args.measure:
        raise ConfigurationError(f"--by: found {args.by} with --no-measure, allowed: {LAYERS}")
    config = load_config_dict(args.config, args.overrides)
    if args.cuda_device is not None:
        config = {**config, "trainer": {**(config.get("trainer") or {}), "cuda_device": args.cuda_device}}
    check_config(config, args.config)
    depth = full_depth(config)
    speeds = checked("--speeds", args.speeds or SPEEDS, 1, float("inf"))
    depths = [int(one) for one in checked("--depths", args.depths or default_depths(depth, speeds), 1, depth)]
    cascades = None if args.cascades is None else [cascade_of(one, {*depths, depth}) for one in args.cascades]
    directory = Path(args.serialization_dir)
    check_directory(directory, False, args.force)
    plan = Plan.of(config, depths, args.distill, args.seeds, directory / "trainings")
    rules = rules_of(plan.exits.variants[0].policy, args.policies or [])
    check_variants([training.variants[0] for training in plan.trainings])
    if args.dry_run:
        plan.costs().print(120)
        return 0
    if args.force:
        shutil.rmtree(directory, ignore_errors=True)
    remember(plan.trainings, directory / STATE_NAME)
    errors = train(plan, args.include_package, args.jobs)
    for error in errors:
        say(f"error: {error}")
    if errors:
        say("not every network is trained; the same command goes on")
        return 1
    say("running all networks over the held-out data and the data that are reported on")
    networks = plan.networks()
    result = answer(plan, networks, rules, speeds, cascades, args.by, args.measure)
    write_report(result, networks, directory, plan)
    return 0


def check_config(config: Mapping[str, Any], path: str) -> None:
    """Raises a `ConfigurationError` unless the config is of a classifier with two exits or more."""
    model = config.get("model")
    name = model.get("type") if isinstance(model, dict) else None
    known = Model.resolve_class_name(name)[0] if name in Model.list_available() else None
    if known is not None and known.task != "classification":
        raise ConfigurationError(
            f"{path}: model.type: found {name!r}, allowed: a classifier, such as multi_exit_classifier"
        )
    layers = encoder_of(dict(config)).get("exit_layers")
    if isinstance(layers, list) and len(layers) < 2:
        raise ConfigurationError(f"{path}: model.encoder.exit_layers: found {layers}, allowed: two exits or more")


def checked(flag: str, values: Sequence[float], low: float, high: float) -> list[float]:
    """The values, each once; a `ConfigurationError` that names `flag` for one out of range."""
    for value in values:
        if not low <= value <= high:
            raise ConfigurationError(f"{flag}: found {value:g}, allowed: {low:g} to {high:g}")
    return list(dict.fromkeys(values))


def default_depths(depth: int, speeds: Sequence[float]) -> list[int]:
    """The depths that are as fast as the speeds."""
    return [max(1, round(depth / speed)) for speed in speeds]


def cascade_of(text: str, depths: set[int]) -> tuple[int, ...]:
    """`4,8`: depths of a cascade, small to large, of those that are trained."""
    parts = text.split(",")
    found = tuple(int(part) for part in parts) if all(part.strip().isdigit() for part in parts) else ()
    if len(found) < 2 or list(found) != sorted(set(found)) or not depths.issuperset(found):
        raise ConfigurationError(
            f"--cascades: found {text!r}, allowed: two or more of the depths {sorted(depths)}, rising, as in 4,8"
        )
    return found


def rules_of(policy: Any, files: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Exit policies by name: the config's own, those of the files, and of `DEFAULT_RULES` what is not among them."""
    rules = {} if policy.get("type") == "final" else {str(policy.get("type")): dict(policy)}
    for one in load_policies([], files, "") if files else []:
        if one.is_sweep:
            raise ConfigurationError(f"{one.where}: found a grid, allowed: policies without one")
        rules[one.name] = one.settings[0].config
        with errors_at(one.where):
            ExitPolicy.from_params(Params(dict(rules[one.name])))
    types = {rule.get("type") for rule in rules.values()}
    return rules | {name: {"type": name} for name in DEFAULT_RULES if name not in types}


def train(plan: Plan, include_packages: Sequence[str], jobs: int) -> list[str]:
    """Trains what is not done; the errors."""
    errors: list[str] = []
    count = len(plan.trainings) * plan.seeds
    done = sum(run.is_finished for runs in plan.stages() for run in runs)
    say(f"{len(plan.trainings)} networks, {plan.seeds} seeds; {done} of {count} done")
    ended = 0
    for runs in plan.stages():
        if errors:
            break  # a teacher may be missing
        for run, error in Launcher(include_packages).run(runs, jobs, say):
            ended += 1
            say(f"[{ended}/{count}] {run}: {error or 'trained'}")
            errors += [] if error is None else [f"{run}: {error}"]
    return errors


def answer(
    plan: Plan,
    networks: Networks,
    rules: Mapping[str, Mapping[str, Any]],
    speeds: Sequence[float],
    cascades: Sequence[tuple[int, ...]] | None,
    by: str,
    with_seconds: bool,
) -> WorthIt:
    """Chooses, measures and judges."""
    variant = plan.exits.variants[0]
    options, chosen = choose_options(networks, rules, speeds, cascades)
    seconds: dict[str, Seconds] = {}
    found: dict[str, Any] = {}
    if with_seconds:
        exits = plan.trained(plan.exits)[0]
        labelled = exits.trace(variant.judged_source(), variant.batch_size).known.nonzero().flatten().tolist()
        instances = exits.archive.validation_dataset_reader.read(variant.judged_source())
        plain = {one: plan.trained(training)[0].archive for one, training in plan.plain.items()}
        seconds = measure_options(options, exits.archive, plain, [instances[row] for row in labelled], REPEATS)
        found = machine(exits.archive.model.device, REPEATS)
    verdicts = judge(networks, options, chosen, seconds, by)
    taken = {EXITS: plan.exits, **{one.name: training for one, training in plan.plain.items()}}
    return WorthIt(
        options,
        verdicts,
        by,
        plan.seeds,
        len(networks.exits[0].reported),
        variant.judged_source(),
        variant.calibration_source(),
        found,
        {name: plan.trained(training)[0].figures["training_seconds"] for name, training in taken.items()},
        chosen_on_held_out(networks),
    )


def chosen_on_held_out(networks: Networks) -> dict[str, Any]:
    """The best depth on held-out data of all seeds, and the best `CHOSEN_EXITS` exits if the config has more."""
    right = {
        one.layers: np.concatenate([right_of_last_exit(traces.held_out) for traces in seeds])
        for one, seeds in networks.plain.items()
        if not one.distilled
    }
    found: dict[str, Any] = {
        "depth": choose_depth({depth: torch.from_numpy(values) for depth, values in right.items()})
    }
    trace = networks.exits[0].held_out
    if trace.num_exits > CHOSEN_EXITS:
        fastest = min(3.0, 0.999 * trace.exit_layers[-1] / trace.exit_costs[0])
        areas: dict[tuple[int, ...], list[float]] = {}
        for traces in networks.exits:
            for choice in choose_exits(traces.held_out, CHOSEN_EXITS, speeds=(1.0, fastest)):
                areas.setdefault(tuple(choice.exit_layers), []).append(choice.area)
        best = max(areas, key=lambda layers: float(np.mean(areas[layers])))
        found["exits"] = list(best)
    return found


def write_report(result: WorthIt, networks: Networks, directory: Path, plan: Plan) -> None:
    """`worth_it.json`, `.md`, `.csv` and the plot, the policies, and on the terminal the table and how to ship."""
    table = result.table()
    content = result.to_json()
    content["ships"] = commands = ship_commands(result.verdicts, plan, directory)
    # Through text, so that no number of numpy's or torch's is left in it.
    write_json(directory / "worth_it.json", json.loads(json.dumps(content, default=float)))
    names = ["worth_it.json", "worth_it.csv", "worth_it.md"]
    table.write(directory / "worth_it.csv")
    if plots_available():
        names += ["worth_it.svg", "worth_it.png"]
        figure = trade_off(result, networks)
        for name in names[-2:]:
            save_figure(figure, directory / name)
    lines = [f"# {result.headline}", "", table.to_markdown(), *(f"- {note}" for note in table.notes[:-1]), ""]
    lines += ["![accuracy against speed](worth_it.svg)", ""] if "worth_it.svg" in names else []
    with atomic_write(directory / "worth_it.md") as file:
        file.write("\n".join(lines))
    table.print(200)
    for speed, command in commands.items():
        say(f"for {speed}: {command}")
    say("wrote " + ", ".join(str(directory / name) for name in names))


def ship_commands(verdicts: Sequence[Verdict], plan: Plan, directory: Path) -> dict[str, str]:
    """By speed: the archive of the first seed, of exits the command that puts the policy into it."""
    found = {}
    for verdict in verdicts:
        ship, key = verdict.ship, f"{verdict.speed:g}x"
        archives = [plan.run(plan.plain[member], 1).archive_path for member in ship.members]
        if ship.kind == "exits":
            assert ship.fitted is not None
            run = plan.trained(plan.exits)[0]
            policy = directory / "policies" / file_name(ship.key) / "seed_1.json"
            write_json(policy, ship.fitted.policies[0].to_config())
            trace = run.trace_path(plan.exits.variants[0].calibration_source(), by_training_reader=True)
            given = f"--trace {trace} --policy {policy} --output-archive NEW.tar.gz"
            found[key] = f"allennlp calibrate {run.run.archive_path} {given}"
        else:
            found[key] = ", ".join(map(str, archives))
    return found
