// BranchyNet's training on RTE, and entropy.
(import 'beem/glue.libsonnet').task('rte', epochs=10) + (import 'beem/methods.libsonnet').branchynet
