// Rows of scripts/train_captions: for each training, the published rule of the method, and that rule fitted for 1.5 and 2
// times the speed in layers. Trainings that several methods share have the rules of all of them.
local captions = import 'beem/captions.libsonnet';
local policies = import 'beem/policies.libsonnet';

local own(name, method) = { name: name, policy: method.model.exit_policy };

// The same rule with one open threshold, wherever it stands.
local open(policy, speed) =
  local fitted = { thresholds: { type: 'budget', speedup: speed } };
  if std.objectHas(policy, 'policy') then policy { policy+: fitted } else policy + fitted;

local at(name, method, speeds=[1.5, 2.0]) = [
  { name: '%s, %gx or more' % [name, speed], policy: open(method.model.exit_policy, speed) }
  for speed in speeds
];

local patience(name, counts) = [
  { name: '%s, patience %d' % [name, count], policy: policies.patience(count) }
  for count in counts
];

{
  final: [],
  reduced: [],
  beem: [own('BEEM-A', captions.beem_a), own('BEEM-C', captions.beem_c)]
        + at('BEEM-A', captions.beem_a) + at('BEEM-C', captions.beem_c),
  pabee: patience('PABEE', [1, 2, 3]),
  deebert: at('DeeBERT', captions.deebert),
  elasticbert: at('ElasticBERT', captions.elasticbert),
  fastbert: at('FastBERT', captions.fastbert),
  leebert: patience('LeeBERT-style', [1, 2, 3]),
  capeen: at('CapEEN', captions.capeen),
  deecap: at('DeeCap', captions.deecap),
  mue: at('MuE', captions.mue_at_speed()),
  calm: [own('CALM, softmax', captions.calm_softmax()), own('CALM, state', captions.calm_state())]
        + at('CALM, softmax', captions.calm_softmax()) + at('CALM, state', captions.calm_state()),
  calm_learned: [own('CALM, learned', captions.calm_learned)] + at('CALM, learned', captions.calm_learned),
}
