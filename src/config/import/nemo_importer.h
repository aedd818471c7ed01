#pragma once
// The importer of NeMo's training configurations; a method for each part (nemo.cpp, nemo_sections.cpp).

#include "draft.h"
#include "nemo_keys.h"

#include <initializer_list>
#include <string>

namespace trireme {

class NemoImporter {
 public:
  NemoImporter(const ConfNode& training, const std::string& source, const NemoImport& import);
  ImportedConfig run();

 private:
  /// Sets a key from an option and reports it.
  void set(const std::string& option, const std::string& key, const std::string& value, const std::string& why = "");
  void refuse(const std::string& option, const std::string& why);
  /// Refuses anything but `wanted`; says nothing where the option is not given.
  void only(const std::string& option, bool wanted, const std::string& why);
  bool is(const std::string& option, const std::string& otherwise, std::initializer_list<const char*> words);
  std::string absolute(const std::string& path) const;

  void refused();
  /// Which of the two families the options describe; a problem where it is neither.
  bool is_gpt();
  int64_t vocabulary();
  /// The file or directory that the tokenizer's keys name; empty: none.
  std::string tokenizer_path();
  /// A number of batches, as Lightning counts them.
  struct Batches {
    bool all = false;  // 1.0, or not given
    int64_t samples = 0;
  };
  Batches batches(const std::string& option);
  /// Steps between validations; 0: only at the end of the run.
  int64_t validation_interval();
  void model();
  void model_report(const ImportedModel& shape);
  void batch();
  void data();
  void data_prefixes();
  void optimizer();
  void schedule();
  void trainer();
  void evaluation();
  void precision();
  void parallel();
  void recompute();
  void experiment();
  void profile();

  ImportDraft draft_;
  TreeOptions options_;
  NemoImport import_;
  ConfNode prefix_;  // model.data.data_prefix
  std::optional<ImportedTokenizer> tokenizer_;
  bool gpt_ = true, mock_ = false, splits_ = false;
  int64_t ranks_ = 1, micro_ = 1, global_ = 1, layers_ = 1;
};

}  // namespace trireme
