// MRPC (GLUE): do two sentences say the same? BEEM-A on ALBERT-base.
(import 'beem/glue.libsonnet').task('mrpc')
