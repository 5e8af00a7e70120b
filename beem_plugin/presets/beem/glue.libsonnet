// A GLUE task with an exit at every layer. The data come from the hub, or from the folder that GLUE_DIR in the
// environment names (GLUE's TSV layout). A tenth of the training set is held out for calibration.
local backbones = import 'backbones.libsonnet';
local policies = import 'policies.libsonnet';
local trainers = import 'trainers.libsonnet';

// What tasks differ in from the defaults below.
local tasks = {
  cola: { metric: '+matthews', max_length: 64 },
  sst2: { batch_size: 32, epochs: 3, max_length: 64 },
  rte: { epochs: 10 },
  wnli: { epochs: 10 },
  stsb: { metric: '+pearson_spearman', model: 'multi_exit_regressor' },
  qnli: { batch_size: 32, epochs: 3 },
  qqp: { batch_size: 32, epochs: 3 },
  // Two development sets: both are reported, and their mean.
  mnli: { batch_size: 32, epochs: 3, test: { matched: 'validation_matched', mismatched: 'validation_mismatched' } },
};

{
  // Without arguments: the settings that the method publishes (`published` of beem/methods.libsonnet), or else those
  // of BEEM's grid. An argument holds whatever the method.
  task(
    task,
    model='albert-base-v2',
    policy=policies['beem-a'],
    batch_size=null,
    epochs=null,
    lr=null,
    metric=null,
    max_length=null,
  )::
    local backbone = backbones.choose(model);
    local row = { batch_size: 16, epochs: 5, metric: '+accuracy', max_length: 128, model: 'multi_exit_classifier', test: 'validation' }
                + std.get(tasks, task, {});
    {
      local settings = self.settings,
      given:: { batch_size: batch_size, epochs: epochs, lr: lr },
      published:: { batch_size: row.batch_size, epochs: row.epochs, lr: 3e-5, patience: 3, weight_decay: 0.01, warmup: 0.06 },
      settings:: self.published + std.prune(self.given),
      dataset_reader: {
        type: 'glue',
        task: task,
        data_dir: std.extVar('GLUE_DIR'),
        tokenizer: { model_name: backbone.model_name, max_length: if max_length == null then row.max_length else max_length },
      },
      train_data_path: 'train[fit]',
      // The held-out tenth also picks the best epoch, so that the official development set is only ever reported.
      validation_data_path: 'train[holdout]',
      test_data_path: row.test,
      evaluate_on_test: true,
      model: {
        type: row.model,
        encoder: { type: 'multi_exit', backbone: { model_name: backbone.model_name } } + backbone.exits,
        objective: { type: 'weighted_distillation' },
        exit_policy: policy,
      },
      data_loader: { batch_size: settings.batch_size, shuffle: true },
      validation_data_loader: { batch_size: 64 },
      trainer: trainers.finetune(
        settings.epochs,
        settings.lr,
        if metric == null then row.metric else metric,
        settings.patience,
        settings.weight_decay,
        settings.warmup,
      ),
    },
}
