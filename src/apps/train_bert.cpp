// Packed BERT pre-training: masked words and next sentence.
#include "trireme/train/run.h"

int main(int argc, char** argv) { return trireme::train_main(argc, argv, trireme::model_family("train_bert")); }
