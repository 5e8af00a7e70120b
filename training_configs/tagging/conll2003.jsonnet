// Named entities of CoNLL-2003 with an exit at every layer. CONLL_DIR in the environment names the folder of
// eng.train, eng.testa and eng.testb.
local backbones = import '../lib/backbones.libsonnet';
local trainers = import '../lib/trainers.libsonnet';
local backbone = backbones.choose('bert-base-uncased');
local kinds = ['PER', 'ORG', 'LOC', 'MISC'];

{
  dataset_reader: {
    type: 'conll',
    tokenizer: { model_name: backbone.model_name },
    label_names: ['O'] + [prefix + '-' + kind for kind in kinds for prefix in ['B', 'I']],
  },
  train_data_path: std.extVar('CONLL_DIR') + '/eng.train[fit]',
  validation_data_path: std.extVar('CONLL_DIR') + '/eng.train[holdout]',
  test_data_path: std.extVar('CONLL_DIR') + '/eng.testa',
  evaluate_on_test: true,
  model: {
    type: 'multi_exit_tagger',
    encoder: { type: 'multi_exit', head: 'token', backbone: { model_name: backbone.model_name } },
    exit_policy: { type: 'max_probability', thresholds: { type: 'budget', speedup: 2.0 } },
  },
  data_loader: { batch_size: 32, shuffle: true },
  trainer: trainers.finetune(3, 5e-5, '+accuracy'),
}
