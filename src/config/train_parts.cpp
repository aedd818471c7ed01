#include "train_parts.h"

#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

namespace {

const std::vector<std::string> kPartKeys = {"path", "weight", "name"};

YamlNode list_at(const Place& place) {
  YamlNode list;
  list.kind = YamlNode::Kind::kList;
  list.place = place;
  return list;
}

YamlNode scalar_at(const Place& place, std::string text, bool quoted) {
  YamlNode scalar;
  scalar.kind = YamlNode::Kind::kScalar;
  scalar.place = place;
  scalar.text = std::move(text);
  scalar.quoted = quoted;
  return scalar;
}

std::string last_part(const YamlNode& path) {
  return std::filesystem::path(path.text).lexically_normal().filename().string();
}

}  // namespace

void expand_train_parts(YamlNode& root, Problems& problems) {
  YamlEntry* data = root.find("data");
  if (data == nullptr || data->value.kind != YamlNode::Kind::kMap) return;
  YamlEntry* train = data->value.find("train");
  if (train == nullptr || train->value.kind != YamlNode::Kind::kList) return;
  const auto is_map = [](const YamlNode& item) { return item.kind == YamlNode::Kind::kMap; };
  const auto& items = train->value.items;
  if (std::none_of(items.begin(), items.end(), is_map)) return;

  const Place place = train->value.place;
  YamlNode paths = list_at(place), weights = list_at(place), names = list_at(place);
  bool weighted = false, named = false;
  for (const YamlNode& item : items) {
    if (!is_map(item)) {  // a path among mappings
      paths.items.push_back(item);
      weights.items.push_back(scalar_at(item.place, "1", false));
      names.items.push_back(scalar_at(item.place, last_part(item), true));
      continue;
    }
    for (const YamlEntry& entry : item.entries) {
      if (std::find(kPartKeys.begin(), kPartKeys.end(), entry.key) != kPartKeys.end()) continue;
      problems.add(entry.place,
                   fmt::format("unknown key '{}' in an entry of data.train, which has path, weight and name.{}",
                               shown(entry.key), did_you_mean(entry.key, kPartKeys)));
    }
    const YamlEntry* path = item.find("path");
    if (path == nullptr) {
      problems.add(item.place, "an entry of data.train has no path");
      continue;
    }
    const YamlEntry *weight = item.find("weight"), *name = item.find("name");
    weighted |= weight != nullptr;
    named |= name != nullptr;
    paths.items.push_back(path->value);
    weights.items.push_back(weight ? weight->value : scalar_at(item.place, "1", false));
    names.items.push_back(name ? name->value : scalar_at(item.place, last_part(path->value), true));
  }
  train->value = std::move(paths);
  const auto put = [&](const char* key, YamlNode list) {
    if (const YamlEntry* given = data->value.find(key)) {
      problems.add(given->place,
                   fmt::format("data.{} and the same in the entries of data.train: give one of them", key));
      return;
    }
    data->value.entries.push_back({key, place, std::move(list)});
  };
  // Entries that are mappings are parts of their own, whether they have weights and names or not.
  // One path without a weight is no blend.
  if (weighted || (!named && items.size() > 1)) put("weights", std::move(weights));
  if (named) put("names", std::move(names));
}

}  // namespace trireme
