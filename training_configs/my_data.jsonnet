// 3050 rows; text: title; category: 'billing' 1200, 'login' 900, 'delivery' 700, 'other' 250
//
//   allennlp train my_data.jsonnet
//
// trains with exits, calibrates them on the held-out part, and reports on the test part. Paths are relative to the
// folder where the command runs.
local backbones = import 'beem/backbones.libsonnet';
local methods = import 'beem/methods.libsonnet';
local trainers = import 'beem/trainers.libsonnet';

local data = 'tickets.csv';  // CSV, TSV or JSON lines
local model_name = 'microsoft/mpnet-base';  // a hub name, a folder, or 'package:minilm'

{
  dataset_reader: {
    type: 'text_classification',
    text_fields: ['title'],  // one column, or two for pairs
    label_field: 'category',
    metric: 'macro_f1',  // 'accuracy', or 'macro_f1' for classes of very different sizes
    test_fraction: 0.1,  // cut off before all else; no text is in two parts
    tokenizer: { model_name: model_name, max_length: 64 },  // 95 % of the texts have up to 30 words
  },
  train_data_path: data + '[fit]',
  validation_data_path: data + '[holdout]',  // a tenth of the rest: picks the epoch, and calibrates
  test_data_path: data + '[test]',
  evaluate_on_test: true,
  model: {
    type: 'multi_exit_classifier',
    encoder: { type: 'multi_exit', backbone: { model_name: model_name } },
  },
  data_loader: { batch_size: 32, shuffle: true },
  validation_data_loader: { batch_size: 64 },
  trainer: trainers.finetune(epochs=5, lr=5e-5, metric='+macro_f1'),
}
// The first 8 of the encoder's 12 layers, with exits of their own. Thresholds are chosen for 1.5 times the speed of
// these layers, 2.25 times the encoder's; after training `allennlp calibrate --speedup 1.34` chooses 2 times.
+ methods.recommended(layers=8, exits=[4, 6, 8], width=384)
+ { model+: { encoder+: { pooler+: { pooling: backbones.pooling(model_name) } } } }
