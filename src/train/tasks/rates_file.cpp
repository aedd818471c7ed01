#include "trireme/train/rates_file.h"

#include "trireme/config/number_file.h"

#include <fmt/format.h>

namespace trireme {

MachineRates read_rates(const std::filesystem::path& file) {
  std::vector<NumberKey> keys;
  for (const RateKey& key : rate_keys()) keys.push_back({key.name, key.least, key.most});
  const NumberFile read = read_number_file(file, {"name"}, keys);
  MachineRates rates = machine_rates(read.texts.at("name"));
  rates.name = read.texts.at("name");
  rates.file = file.string();
  for (const RateKey& key : rate_keys())
    if (const auto found = read.numbers.find(key.name); found != read.numbers.end()) rates.*key.value = found->second;
  return rates;
}

std::optional<MachineRates> configured_rates(const Config& config) {
  if (!config.parallel.rates) return std::nullopt;
  return read_rates(*config.parallel.rates);
}

std::string rates_text(const MachineRates& rates, const std::set<std::string>& measured,
                       const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += "# " + note + '\n';
  // Single quotes hold every character but themselves.
  std::string name;
  for (const char c : rates.name) name += c == '\'' ? std::string("''") : std::string(1, c);
  text += fmt::format("name: '{}'\n", name);
  for (const RateKey& key : rate_keys())
    if (measured.contains(key.name))
      text += fmt::format("{:<40}# {}\n", fmt::format("{}: {:.4g}", key.name, rates.*key.value), key.meaning);
  return text;
}

}  // namespace trireme
