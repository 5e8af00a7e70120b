// FastBERT on RTE: self-distillation into small attention heads, and normalized entropy.
(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').fastbert
