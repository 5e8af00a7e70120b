// BranchyNet's training on RTE, and entropy.
(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').branchynet
