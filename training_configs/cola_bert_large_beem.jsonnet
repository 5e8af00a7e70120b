// CoLA (GLUE) on BERT-large, as in the paper's Table 4.
(import 'beem/glue.libsonnet').task('cola', model='bert-large-uncased')
