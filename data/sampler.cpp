#include "data/dataset.h"
#include "trireme/base/error.h"
#include "trireme/base/rng.h"

#include <numeric>

namespace trireme {

struct Sampler::Generator {
  explicit Generator(uint32_t seed) : random(seed) {}
  NumpyRandom random;
  int64_t next_epoch = 0;  // the epoch whose permutation the generator yields next
};

Sampler::Sampler(int64_t dataset_size, uint64_t seed, bool shuffle)
    : size_(dataset_size), seed_(seed), shuffle_(shuffle) {
  TRIREME_CHECK(dataset_size > 0, "cannot sample from ", dataset_size, " rows");
  TRIREME_CHECK(seed < (uint64_t{1} << 32), "seed ", seed,
                ": NumPy's RandomState, whose order the data follows, takes 0 to ", 0xFFFFFFFFull);
}

int64_t Sampler::at(int64_t position) {
  TRIREME_CHECK(position >= 0, "stream position ", position);
  if (!shuffle_) return position % size_;
  generate_through(position / size_);
  return permutation_[static_cast<size_t>(position % size_)];
}

void Sampler::generate_through(int64_t epoch) {
  if (epoch == epoch_) return;
  // The generator only moves forwards. An earlier epoch gets a new generator, so that copies of a Sampler, which share
  // one, do not disturb each other.
  if (!generator_ || generator_->next_epoch > epoch)
    generator_ = std::make_shared<Generator>(static_cast<uint32_t>(seed_));
  permutation_.resize(static_cast<size_t>(size_));
  while (generator_->next_epoch <= epoch) {
    std::iota(permutation_.begin(), permutation_.end(), int64_t{0});
    generator_->random.shuffle(permutation_);
    ++generator_->next_epoch;
  }
  epoch_ = epoch;
}

}  // namespace trireme
