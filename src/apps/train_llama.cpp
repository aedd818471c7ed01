// Llama-family training: LoRA or full parameters.
#include "trireme/train/run.h"

int main(int argc, char** argv) {
  return trireme::train_main(argc, argv, {"train_llama", trireme::Program::kLlama, trireme::make_causal_lm_task});
}
