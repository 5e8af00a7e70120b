// CoLA (GLUE) on ALBERT-large, as in the paper's Table 4.
(import 'beem/glue.libsonnet').task('cola', model='albert-large-v2')
