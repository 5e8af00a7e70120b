// A GLUE task with an exit at every layer. The data come from the hub, or from the folder that GLUE_DIR in the
// environment names (GLUE's TSV layout). A tenth of the training set is held out for calibration.
local backbones = import 'backbones.libsonnet';
local policies = import 'policies.libsonnet';
local trainers = import 'trainers.libsonnet';

{
  task(
    task,
    model='albert-base-v2',
    policy=policies['beem-a'],
    batch_size=16,
    epochs=5,
    lr=3e-5,
    metric='+accuracy',
    max_length=128,
  )::
    local backbone = backbones.choose(model);
    {
      dataset_reader: {
        type: 'glue',
        task: task,
        data_dir: std.extVar('GLUE_DIR'),
        tokenizer: { model_name: backbone.model_name, max_length: max_length },
      },
      train_data_path: 'train[fit]',
      // The held-out tenth also picks the best epoch, so that the official development set is only ever reported.
      validation_data_path: 'train[holdout]',
      test_data_path: 'validation',
      evaluate_on_test: true,
      model: {
        type: 'multi_exit_classifier',
        encoder: { type: 'multi_exit', backbone: { model_name: backbone.model_name } } + backbone.exits,
        objective: { type: 'weighted_distillation' },
        exit_policy: policy,
      },
      data_loader: { batch_size: batch_size, shuffle: true },
      validation_data_loader: { batch_size: 64 },
      trainer: trainers.finetune(epochs, lr, metric),
    },
}
