// BERxiT on STS-B, a regression: alternating training, and a learned guess of how far off exits are.
(import 'beem/glue.libsonnet').task('stsb') + (import 'beem/methods.libsonnet').berxit
