// Published early-exit methods: what is trained, in which stages, and by which rule samples leave. Each is a difference
// to `beem/glue.libsonnet`'s task, so that `glue.task('mrpc') + methods.deebert` is DeeBERT on MRPC.
//
// Of a stage that leaves the last exit as it is, the loss picks the best epoch: the task's metric, the last exit's, would
// be the same in all of them.
//
// Numbers are the papers' and their releases'; `published` are rate, batch, epochs and the like, which arguments of
// `glue.task` override. Where a paper gives none, they are the task's. Where a rule has a threshold and the paper reports
// several, the threshold is chosen on the held-out tenth for one and a half times the speed: any other is
// `allennlp calibrate` away. A variant of ours has a name of its own.
local policies = import 'policies.libsonnet';
local trainers = import 'trainers.libsonnet';

// A pooler an exit, on what the backbone was chosen with.
local own_poolers = { share_pooler: false };
// A fine-tuning without warm-up and weight decay, all epochs: the scripts that came with PABEE and DeeBERT.
local plain = { patience: null, weight_decay: 0.0, warmup: 0 };
local at_speed(policy, speedup=1.5) = policy { thresholds: { type: 'budget', speedup: speedup } };

{
  at_speed:: at_speed,

  // The network alone: no exit but the last.
  final:: { model+: { objective: { type: 'final_exit' }, exit_policy: policies.full_depth } },

  // The first layers of the pretrained network, trained as a network of its own.
  reduced(layers):: {
    model+: {
      encoder+: { backbone+: { num_layers: layers }, exit_layers: [layers] },
      objective: { type: 'final_exit' },
      exit_policy: policies.full_depth,
    },
  },

  // Exits with capacity of their own, on an encoder cut to the depth that pays: a transformer branch of `width` before the
  // pooler of each exit but the last, 0.1 of these exits' gradient into the encoder, each exit taught by the next one, four
  // times the encoder's rate for branches, poolers and classifiers; leave when confident.
  recommended(layers=8, exits=[4, 6, 8], width=384):: {
    model+: {
      encoder+: {
        backbone+: { num_layers: layers },
        exit_layers: exits,
        pooler: { type: 'bert_pooler', pooling: 'mean' },
        share_pooler: false,
        branch: { type: 'transformer', width: width },
        fork: { type: 'scaled', exit: 0.1 },
      },
      objective: { type: 'weighted_distillation', layer_weights: 'uniform', teacher: 'next', reduction: 'sum' },
      exit_policy: at_speed({ type: 'max_probability' }),
    },
    trainer+: { optimizer+: { heads_lr_factor: 4 } },
  },

  // A difference to `recommended` and other trainings for scores in place of classes: each exit learns to predict its own
  // error; samples leave where it is small.
  regression:: {
    model+: {
      local losses = super.objective,
      type: 'multi_exit_regressor',
      encoder+: { signals: ['predicted_error'] },
      objective: { type: 'learned_exit', objective: losses },
      exit_policy: at_speed({ type: 'predicted_error' }),
    },
  },

  // `recommended` for twice the epochs, taught by a trained network of full depth too: `teacher` is its archive or folder,
  // such as of a run of `methods.final`.
  recommended_distilled(teacher, layers=8, exits=[4, 6, 8], width=384)::
    $.recommended(layers, exits, width) + $.distilled(teacher, reduction='sum')
    + { trainer+: { num_epochs: 2 * super.num_epochs } },

  // LayerSkip (Elhoushi et al. 2024): skip blocks at random, deep ones more often; weigh exits by the sum of the layers up
  // to them, early ones times `scale`, and train the last one first, all from half of the steps on.
  layer_skip(exits=std.range(1, 12), max_rate=0.2, scale=1.0, curriculum={ type: 'gradual' }):: {
    model+: {
      encoder+: own_poolers { exit_layers: exits, layer_dropout: { max_rate: max_rate } },
      objective: {
        type: 'weighted_distillation',
        layer_weights: [(if layer == exits[std.length(exits) - 1] then 1 else scale) * layer * (layer + 1) / 2 for layer in exits],
        distillation: 'off',
        curriculum: curriculum,
      },
      exit_policy: at_speed({ type: 'max_probability' }),
    },
  },

  // After Separate Reverse (2026): one stage an exit, from the deepest to the shallowest; the exits so far are trained on,
  // each taught by the next deeper one. A difference to other methods too: `methods.recommended() + ...`.
  separate_reverse(exits=[4, 6, 8], epochs=2):: {
    local last = std.length(exits) - 1,
    model+: { encoder+: own_poolers { exit_layers: exits }, exit_policy: at_speed({ type: 'max_probability' }) },
    trainer+: {
      type: 'staged',
      stages: [
        {
          name: 'layer_%d' % exits[last - done],
          objective: {
            type: 'weighted_distillation',
            layer_weights: [if index < last - done then 0 else 1 for index in std.range(0, last)],
            teacher: 'next',
            reduction: 'sum',
          },
          num_epochs: epochs,
          [if done > 0 then 'validation_metric']: '-loss',
        }
        for done in std.range(0, last)
      ],
    },
  },

  // Added to a method in one stage: its objective, and the last exit of a trained model as teacher (an archive or its folder).
  distilled(teacher, weight=0.5, hidden_states_weight=0.0, reduction='mean'):: {
    model+: {
      local own = super.objective,
      objective: {
        type: 'distilled',
        teacher: teacher,
        weight: weight,
        hidden_states_weight: hidden_states_weight,
        reduction: reduction,
        objective: own,
      },
    },
  },

  // Added to a method in one stage: its objective, and supervised contrastive learning across exits (Zhu 2026).
  contrastive(weight=0.1, keys='all', temperature=0.1):: {
    model+: {
      local own = super.objective,
      objective: { type: 'contrastive', weight: weight, keys: keys, temperature: temperature, objective: own },
    },
  },

  // PABEE (Zhou et al. 2020): one training, every exit by its depth; leave when `patience` exits in a row change nothing.
  pabee:: {
    published+:: plain { batch_size: 32, epochs: 5, lr: 2e-5 },
    model+: {
      objective: { type: 'weighted_distillation', layer_weights: 'linear', distillation: 'off' },
      exit_policy: policies.patience(6),
    },
  },

  // DeeBERT (Xin et al. 2020): fine-tune the network; freeze it and train the exits; leave at low entropy, in nats.
  deebert:: {
    published+:: plain { batch_size: 8, epochs: 3, lr: 2e-5 },
    model+: { encoder+: own_poolers, exit_policy: at_speed({ type: 'entropy' }) },
    trainer+: {
      type: 'staged',
      stages: [
        { name: 'backbone', objective: { type: 'final_exit' }, no_grad: ['@early_exits'] },
        { name: 'exits', objective: { type: 'early_exits', reduction: 'sum' }, no_grad: ['@backbone', '@last_exit'], validation_metric: '-loss' },
      ],
    },
  },

  // ElasticBERT (Liu et al. 2022): one training, all exits alike, each block given the mean of their gradients.
  elasticbert:: {
    published+:: { batch_size: 32, epochs: 5, lr: 2e-5, patience: null, weight_decay: 0.1 },
    model+: {
      encoder+: own_poolers { gradient_equilibrium: true },
      objective: { type: 'weighted_distillation', layer_weights: 'uniform', distillation: 'off', reduction: 'sum' },
      exit_policy: at_speed({ type: 'entropy' }),
    },
  },

  // BERxiT (Xin et al. 2021): steps on the last exit and steps on all take turns; a linear module learns where exits err.
  berxit:: {
    model+: {
      encoder+: own_poolers { signals: ['predicted_error'] },
      objective: { type: 'learned_exit', objective: { type: 'alternating' } },
      exit_policy: at_speed({ type: 'predicted_error' }),
    },
  },

  // FastBERT (Liu et al. 2020): a small attention network as head; fine-tune the network; freeze it and let every exit
  // learn the last one's probabilities, without labels; leave at low entropy, as a share of the largest.
  fastbert:: {
    published+:: { epochs: 5, lr: 2e-5, patience: null },
    local given = std.get(self, 'given', {}),
    model+: {
      encoder+: { head: { type: 'attention' } },
      exit_policy: at_speed({ type: 'entropy', normalized: true }),
    },
    trainer+: {
      type: 'staged',
      stages: [
        {
          name: 'teacher',
          objective: { type: 'final_exit' },
          no_grad: ['@early_exits'],
          // In a GLUE task to which no other number is given.
          [if std.get(given, 'epochs', 0) == null then 'num_epochs']: 3,
          // What the teacher has not learned it cannot teach.
          require: { metric: 'accuracy', at_least: 0.6, on_failure: 'warn' },
        },
        {
          name: 'distillation',
          objective: { type: 'self_distillation' },
          no_grad: ['@backbone', '@last_exit'],
          validation_metric: '-loss',
          optimizer: trainers.adamw(2e-4),
        },
      ],
    },
  },

  // ETFEE (Ji et al. 2023, as released): fixed classifiers; fine-tune the network; freeze it and train an adapter an exit,
  // early ones with more weight; PABEE's rule. The release has the adapter beside the block's feed-forward layer, here it
  // follows the block.
  etfee:: {
    published+:: plain { batch_size: 32, epochs: 5, lr: 2e-5 },
    local given = std.get(self, 'given', {}),
    model+: {
      encoder+: {
        head: { type: 'equiangular' },
        branch: { type: 'adapter', width: 128, activation: 'relu', scale: 8, norm: true },
      },
      exit_policy: policies.patience(6),
    },
    trainer+: {
      type: 'staged',
      stages: [
        { name: 'backbone', objective: { type: 'final_exit' }, no_grad: ['@early_exits'] },
        {
          name: 'adapters',
          objective: { type: 'early_exits', layer_weights: 'descending', reduction: 'mean' },
          no_grad: ['@backbone', '@last_exit'],
          validation_metric: '-loss',
          [if std.get(given, 'epochs', 0) == null then 'num_epochs']: 1,
          optimizer: trainers.adamw(8e-3),
        },
      ],
    },
  },

  // LeeBERT-style (after Zhu 2021, which has no public code): every exit learns from the labels and from every other
  // exit, with weights that are learned on a part of the training data; PABEE's rule.
  leebert:: {
    model+: { objective: { type: 'mutual_distillation' }, exit_policy: policies.patience(6) },
    trainer+: { callbacks+: [{ type: 'cross_level' }] },
  },

  // PCEE-BERT (Zhang et al. 2022): PABEE's training; leave after `patience` confident exits in a row, agreeing or not.
  pcee:: $.pabee { model+: { exit_policy: { type: 'confident_patience', patience: 3, entropy_threshold: 0.3 } } },

  // Zero Time Waste (Wolczyk et al. 2021): fine-tune the network; freeze it and train heads that see the logits of the
  // head before; combine all heads so far by weights learned on the training data; leave when the ensemble is confident.
  ztw:: {
    published+:: { batch_size: 32, epochs: 5 },
    local whole = self,
    model+: {
      encoder+: { head: { type: 'cascaded' } },
      exit_policy: at_speed({ type: 'cascaded_ensemble', weights: 'adam' }),
    },
    trainer+: {
      type: 'staged',
      callbacks: [
        if callback.type == 'calibrate_exits' then callback { parameters_data: whole.train_data_path } else callback
        for callback in super.callbacks
      ],
      stages: [
        { name: 'backbone', objective: { type: 'final_exit' }, no_grad: ['@early_exits'] },
        {
          name: 'heads',
          objective: { type: 'early_exits', reduction: 'mean' },
          no_grad: ['@backbone', '@last_exit'],
          validation_metric: '-loss',
          optimizer: { type: 'adam', lr: 1e-2, weight_decay: 1e-4 },
          learning_rate_scheduler: { type: 'cosine_with_warmup', warmup_steps: 0 },
        },
      ],
    },
  },
  // With the ensembles' weights fitted to the minimum, on the calibration data.
  ztw_lbfgs:: $.ztw { model+: { exit_policy+: { weights: 'fit' } } },

  // PALBERT (Balagansky and Gavrilov 2022): one pooler and one classifier for all exits; a perceptron says how probable
  // halting is; the expected loss over halting exits, with a prior; leave at the median of the halting distribution.
  palbert:: {
    published+:: { batch_size: 32, epochs: 25, lr: 1e-5, patience: 5 },
    model+: {
      encoder+: {
        share_pooler: true,
        share_classifier: true,
        dropout: 0.0,
        signals: ['halt'],
        backbone+: { config_overrides+: { hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0 } },
      },
      objective: { type: 'pondering' },
      exit_policy: { type: 'halting', threshold: 0.5 },
    },
  },

  // JEI-DNN (Regol et al. 2024): fine-tune the network; freeze it and train heads and gates by turns, each against the
  // other's choices; leave where a gate opens.
  jei_dnn:: {
    model+: { encoder+: { signals: ['gate'] }, exit_policy: { type: 'gate' } },
    trainer+: {
      type: 'staged',
      stages: [
        { name: 'backbone', objective: { type: 'final_exit' }, no_grad: ['@early_exits', '@signals'] },
        {
          name: 'gates',
          objective: { type: 'joint_gates' },
          no_grad: ['@backbone', '@last_exit'],
          validation_metric: '-loss',
          optimizer: { type: 'sgd', lr: 1e-2 },
          learning_rate_scheduler: null,
        },
      ],
    },
  },
  // For small tasks, where at the published price of depth samples leave at five times the speed and more: a lower price,
  // and Adam.
  jei_dnn_small(beta=0.1):: $.jei_dnn {
    trainer+: {
      stages: [
        if stage.name == 'gates' then stage { objective+: { beta: beta }, optimizer: { type: 'adam', lr: 1e-3 } } else stage
        for stage in super.stages
      ],
    },
  },

  // EEIC (Sun et al. 2021): exits learn the labels and to differ from each other; leave when enough of them agree.
  eeic:: { model+: { objective: { type: 'diverse' }, exit_policy: at_speed({ type: 'voting', min_exit: 2 }) } },

  // Shallow-Deep networks (Kaya et al. 2019): pooling by a learned mix of maximum and mean; the exits' weights rise while
  // the network is trained; leave when confident, and at the end answer as the most confident exit.
  shallow_deep:: {
    model+: {
      encoder+: { pooler: { type: 'mixed_pooler' }, share_pooler: false },
      objective: { type: 'annealed' },
      exit_policy: at_speed({ type: 'max_probability', fallback: 'most_confident' }),
    },
  },

  // BranchyNet (Teerapittayanon et al. 2016): one training, all exits alike; leave at low entropy, in nats.
  branchynet:: {
    model+: {
      encoder+: own_poolers,
      objective: { type: 'weighted_distillation', layer_weights: 'uniform', distillation: 'off' },
      exit_policy: at_speed({ type: 'entropy' }),
    },
  },

  // Global Past-Future (Liao et al. 2021): exits see all states before them and imitations of those to come.
  past_future:: {
    // The classifiers see sums over all layers: at higher rates a deep network does not learn.
    published+:: { lr: 2e-5 },
    model+: {
      encoder+: own_poolers { head: { type: 'past_future' }, gradual_unfreezing: 4 },
      objective: { type: 'imitation' },
      exit_policy: at_speed({ type: 'entropy' }),
    },
  },

  // HashEE (Sun et al. 2022): every token leaves at a depth that a table gives it; one classifier, no decision.
  hashee:: { model+: { encoder+: { type: 'hash_exit' }, objective: { type: 'final_exit' }, exit_policy: policies.full_depth } },

  // MuE's rule (Tang et al. 2023) on a text encoder: one classifier for all layers; leave when a layer changes little.
  mue:: {
    model+: {
      encoder+: { share_pooler: true, share_classifier: true, signals: ['similarity'] },
      objective: { type: 'weighted_distillation', layer_weights: 'uniform', distillation: 'off' },
      exit_policy: at_speed({ type: 'similarity' }),
    },
  },
}
