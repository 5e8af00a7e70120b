// Named entities of CoNLL-2003 with an exit at every layer; CONLL_DIR is the folder of eng.train and eng.testa.
local backbone = (import 'beem/backbones.libsonnet').choose('bert-base-uncased').model_name;
local trainers = import 'beem/trainers.libsonnet';
{
  dataset_reader: {
    type: 'conll',
    tokenizer: { model_name: backbone },
    label_names: ['O'] + [prefix + '-' + kind for kind in ['PER', 'ORG', 'LOC', 'MISC'] for prefix in ['B', 'I']],
  },
  train_data_path: std.extVar('CONLL_DIR') + '/eng.train[fit]',
  validation_data_path: std.extVar('CONLL_DIR') + '/eng.train[holdout]',
  test_data_path: std.extVar('CONLL_DIR') + '/eng.testa',
  evaluate_on_test: true,
  model: {
    type: 'multi_exit_tagger',
    encoder: { type: 'tagging', backbone: { model_name: backbone } },
    exit_policy: { type: 'max_probability', thresholds: { type: 'budget', speedup: 2.0 } },
  },
  data_loader: { batch_size: 32, shuffle: true },
  trainer: trainers.finetune(3, 5e-5, '+accuracy'),
}
