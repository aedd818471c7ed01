#pragma once
// The most recently used objects, up to a number of bytes.

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>

namespace trireme {

/// Thread-safe. Values are shared: a dropped object exists until its last user releases it.
template <class Key, class Value>
class Recent {
 public:
  explicit Recent(size_t capacity) : capacity_(capacity) {}

  /// The value of `key`, made by make() if absent; bytes(value) is its size. Two threads may make the same value at the
  /// same time.
  std::shared_ptr<const Value> get(const Key& key, const std::function<Value()>& make,
                                   const std::function<size_t(const Value&)>& bytes) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = places_.find(key); found != places_.end()) {
        entries_.splice(entries_.begin(), entries_, found->second);
        return found->second->value;
      }
    }
    auto value = std::make_shared<const Value>(make());
    const std::lock_guard lock(mutex_);
    if (places_.contains(key)) return value;
    entries_.push_front({key, value, bytes(*value)});
    places_[key] = entries_.begin();
    used_ += entries_.front().bytes;
    while (used_ > capacity_ && entries_.size() > 1) {
      used_ -= entries_.back().bytes;
      places_.erase(entries_.back().key);
      entries_.pop_back();
    }
    return value;
  }

 private:
  struct Entry {
    Key key;
    std::shared_ptr<const Value> value;
    size_t bytes;
  };
  std::mutex mutex_;
  size_t capacity_, used_ = 0;
  std::list<Entry> entries_;  // the latest first
  std::map<Key, typename std::list<Entry>::iterator> places_;
};

}  // namespace trireme
