// GPT-3 family pre-training, with the optimizer and loss of NeMo's configurations as defaults.
#include "trireme/train/run.h"

int main(int argc, char** argv) { return trireme::train_main(argc, argv, trireme::model_family("train_gpt")); }
