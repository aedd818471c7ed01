#pragma once
#include <string>

namespace trireme {

struct CheckpointExport {
  std::string checkpoint, output, dtype, model;  // the last two may be empty: the run's own
};
/// The PEFT adapter or Hugging Face model of the newest whole one of the checkpoints that are meant.
void export_checkpoint(const CheckpointExport& options);

}  // namespace trireme
