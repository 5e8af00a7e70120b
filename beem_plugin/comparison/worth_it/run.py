"""`allennlp worth-it`: trains plain networks beside a config, and says which to ship at each speed."""

import argparse
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from beem_plugin.common.errors import ConfigurationError, check_least, check_number
from beem_plugin.common.files import write_json
from beem_plugin.common.params import load_config_dict
from beem_plugin.common.registry import Params
from beem_plugin.comparison.exit_choice import choose_depth, choose_exits
from beem_plugin.comparison.plain_networks import encoder_of, full_depth, plain_config, right_of_last_exit
from beem_plugin.comparison.policy_files import errors_at, load_policies
from beem_plugin.comparison.report import calibrate_command, write_report
from beem_plugin.comparison.trainings.judging import tracing_steps
from beem_plugin.comparison.trainings.launcher import Launcher
from beem_plugin.comparison.trainings.runs import file_name
from beem_plugin.comparison.trainings.trainings import Trainings, check_directory, cost_table, say, train_all
from beem_plugin.comparison.trainings.variants import Variant, check_variants
from beem_plugin.comparison.worth_it.networks import Networks, Plain, Traces
from beem_plugin.comparison.worth_it.options import SPEEDS, choose_options
from beem_plugin.comparison.worth_it.result import EXITS, WorthIt, trade_off
from beem_plugin.comparison.worth_it.verdicts import LAYERS, Costs, Verdict, judge, measure_options
from beem_plugin.evaluation.benchmark import machine
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models.model import Model
from beem_plugin.rendering.plots import plots_available

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
    # By default the depths that are as fast as the speeds.
    depths = checked("--depths", args.depths or [max(1, round(depth / speed)) for speed in speeds], 1, depth)
    plain = [Plain(layers) for layers in sorted({*map(int, depths), depth}, reverse=True)]
    cascades = None if args.cascades is None else [cascade_of(one, plain) for one in args.cascades]
    plain += [Plain(one.layers, True) for one in plain[1:] if args.distill]
    directory = Path(args.serialization_dir)
    check_directory(directory, False, args.force)
    trainings = Trainings(variants_of(config, plain), directory, args.seeds)
    rules = rules_of(trainings.variants[0].policy, args.policies or [])
    check_variants(trainings.variants)
    if args.dry_run:
        cost_table({("", ""): trainings}, {"": depth}, jobs=args.jobs).print(120)
        return 0
    if args.force:
        shutil.rmtree(directory, ignore_errors=True)
    steps = partial(tracing_steps, like=trainings.variants[0])
    ended = train_all([trainings], Launcher(args.jobs, args.include_package), steps)
    errors = [f"error: {run}: {error}" for run, error in ended if error]
    if errors:
        say("\n".join([*errors, "not every network is trained; the same command goes on"]))
        return 1
    traces = [
        [Traces.of(run, trainings.variants[0]) for run in trainings.trained(variant.name)]
        for variant in trainings.variants
    ]
    networks = Networks(depth, traces[0], dict(zip(plain, traces[1:], strict=True)))
    options, chosen = choose_options(networks, rules, speeds, cascades)
    seconds: dict[str, Costs] = {}
    sources = trainings.variants[0].judged_source(), trainings.variants[0].calibration_source()
    result = WorthIt(options, [], args.by, args.seeds, len(networks.exits[0].reported), *sources)
    if args.measure:
        seconds, result.machine = measured(trainings, networks, result)
    result.verdicts = judge(networks, options, chosen, seconds, args.by)
    first = {variant.name: trainings.trained(variant.name)[0] for variant in trainings.variants}
    result.training_seconds = {name: run.figures["training_seconds"] for name, run in first.items()}
    result.choice = chosen_on_held_out(networks)
    report(result, networks, trainings)
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
        check_number(flag, value, low, high)
    return list(dict.fromkeys(values))


def cascade_of(text: str, plain: Sequence[Plain]) -> tuple[int, ...]:
    """`4,8`: depths of a cascade, small to large, of those that are trained."""
    parts, depths = text.split(","), sorted(one.layers for one in plain)
    found = tuple(int(part) for part in parts) if all(part.strip().isdigit() for part in parts) else ()
    if len(found) < 2 or list(found) != sorted(set(found)) or not set(depths).issuperset(found):
        raise ConfigurationError(
            f"--cascades: found {text!r}, allowed: two or more of the depths {depths}, rising, as in 4,8"
        )
    return found


def variants_of(config: dict[str, Any], plain: Sequence[Plain]) -> list[Variant]:
    """The config, and the plain networks; the first of them teaches those that are distilled."""
    found = [Variant(EXITS, config, EXITS)]
    for one in plain:
        teacher = plain[0].name if one.distilled else None
        found.append(Variant(one.name, plain_config(config, one.layers), one.name, teacher=teacher))
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


def measured(trainings: Trainings, networks: Networks, result: WorthIt) -> tuple[dict[str, Costs], dict[str, Any]]:
    """Seconds of the first seed's networks by way of running, and the machine."""
    exits, variant = trainings.trained(EXITS)[0], trainings.variants[0]
    labelled = exits.trace(result.judged_on, variant.batch_size).known.nonzero().flatten().tolist()
    instances = exits.archive.validation_dataset_reader.read(result.judged_on)
    plain = {one: trainings.trained(one.name)[0].archive for one in networks.plain}
    seconds = measure_options(result.options, exits.archive, plain, [instances[row] for row in labelled], REPEATS)
    return seconds, machine(exits.archive.model.device, REPEATS)


def chosen_on_held_out(networks: Networks) -> dict[str, Any]:
    """The best depth on held-out data of all seeds, and the best `CHOSEN_EXITS` exits if the config has more."""
    # Seeds share the samples: of each sample the mean over seeds is one draw.
    right = {
        one.layers: torch.from_numpy(np.mean([right_of_last_exit(traces.held_out) for traces in seeds], axis=0))
        for one, seeds in networks.plain.items()
        if not one.distilled
    }
    found: dict[str, Any] = {"depth": choose_depth(right)}
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


def report(result: WorthIt, networks: Networks, trainings: Trainings) -> None:
    """`worth_it.json`, `.md`, `.csv` and the plot, the policies, and on the terminal the table and how to ship."""
    table, ships = result.table(), {f"{one.speed:g}x": ship_command(one, trainings) for one in result.verdicts}
    figures = {"worth_it": trade_off(result, networks)} if plots_available() else {}
    content = result.to_json() | {"ships": ships}
    write_report(trainings.folder / "worth_it", table, content, table.to_records(), figures)
    say("\n".join(f"for {speed}: {command}" for speed, command in ships.items()))


def ship_command(verdict: Verdict, trainings: Trainings) -> str:
    """The archives of the first seed, of exits the command that puts the policy into it."""
    ship = verdict.ship
    if ship.kind != "exits":
        return ", ".join(str(trainings.trained(member.name)[0].run.archive_path) for member in ship.members)
    run, policy = trainings.trained(EXITS)[0], trainings.folder / "policies" / file_name(ship.key) / "seed_1.json"
    write_json(policy, ship.fitted[0].policy.to_config())
    trace = run.trace_path(trainings.variants[0].calibration_source(), by_training_reader=True)
    return calibrate_command(run.run.archive_path, trace, policy)
