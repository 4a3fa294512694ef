// One dispatch, on the emulator.
#pragma once

#include "dispatch.h"
#include "settings.h"

namespace pomona::metal_on_cpu {

// Raises std::runtime_error with what went wrong, and where; else completes the record.
void run(const Dispatch& dispatch, const Settings& settings, DispatchRecord& record);

} // namespace pomona::metal_on_cpu
