// Llama-family training: LoRA or full parameters.
#include "trireme/train/run.h"

int main(int argc, char** argv) { return trireme::train_main(argc, argv, trireme::model_family("train_llama")); }
