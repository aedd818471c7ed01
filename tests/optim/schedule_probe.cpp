// Learning rates for schedule_test.py: reads lines "NAME WARMUP CONSTANT MIN_LR FACTOR|- RATIO|- TYPE LR MAX_STEPS" and
// prints for each the rates of the steps 0 … MAX_STEPS + 2 with all digits.
#include "trireme/base/text.h"
#include "trireme/config/keys.h"
#include "trireme/optim/optimizer.h"

#include <cstdio>
#include <iostream>
#include <string>

int main() {
  trireme::ScheduleSection schedule;
  std::string name, factor, ratio, type;
  double lr = 0;
  int64_t max_steps = 0;
  const auto optional = [](const std::string& text) {
    return text == "-" ? std::nullopt : std::optional(std::stod(text));
  };
  while (std::cin >> name >> schedule.warmup_steps >> schedule.constant_steps >> schedule.min_lr >> factor >> ratio >>
         type >> lr >> max_steps) {
    schedule.name = trireme::choice_of<trireme::ScheduleSection::Name>(name).value();
    schedule.decay_type = trireme::choice_of<trireme::ScheduleSection::DecayType>(type).value();
    schedule.min_lr_factor = optional(factor);
    schedule.decay_ratio = optional(ratio);
    for (int64_t step = 0; step <= max_steps + 2; ++step)
      std::printf("%s%c", trireme::format_exact(trireme::learning_rate(schedule, lr, max_steps, step)).c_str(),
                  step == max_steps + 2 ? '\n' : ' ');
  }
  return 0;
}
