// BERxiT on STS-B, a regression: alternating training, and a learned guess of how far off exits are.
(import 'beem/glue.libsonnet').task('stsb', epochs=5, metric='+pearson_spearman')
+ (import 'beem/methods.libsonnet').berxit
+ { model+: { type: 'multi_exit_regressor' } }
