#pragma once
// README.md beside the files of a data set of the Hub, which divides them into configurations and splits.

#include <filesystem>
#include <string>
#include <vector>

namespace trireme {

/// The files of a split of a configuration.
struct CardSplit {
  std::string name;                   // "en: train"
  std::vector<std::string> patterns;  // "en/train-*", relative to the card
};

/// What "configs" in the YAML at the head of `directory`/README.md lists, the default configuration first. Empty where
/// there is no such card, or none in it. DataError with the place for YAML that this program does not read.
std::vector<CardSplit> read_dataset_card(const std::filesystem::path& directory);

/// `file`: relative to the card.
bool lists_file(const CardSplit& split, const std::filesystem::path& file);

}  // namespace trireme
