#include "models/bert/model_directory.h"

#include "models/bert/weights.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>

namespace trireme {

BertDirectoryWriter::BertDirectoryWriter(const std::filesystem::path& directory,
                                         std::vector<std::pair<std::string, TensorInfo>> tensors)
    : staged_(directory), tensors_(std::move(tensors)), writer_(staged_.path() / "model.safetensors", tensors_) {}

void BertDirectoryWriter::append(const std::string& name, const at::Tensor& value) {
  const auto& [due, info] = tensors_.at(next_++);
  TRIREME_CHECK(due == name, "export gives ", name, " where ", due, " is due");
  const at::Tensor stored = value.narrow(0, 0, info.shape[0]).contiguous();
  writer_.append(stored.const_data_ptr(), stored.nbytes());
}

void BertDirectoryWriter::finish(const std::filesystem::path& base, const BertConfig& config) {
  TRIREME_CHECK(next_ == tensors_.size(), next_, " of ", tensors_.size(), " tensors are written");
  writer_.commit();
  finish_bert_directory(staged_.path(), base, config);
  staged_.commit();
}

}  // namespace trireme
