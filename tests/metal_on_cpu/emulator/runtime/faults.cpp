// Turns a fault on a fiber into the dispatch's error, and leaves every other fault alone.
#include <csignal>
#include <mutex>

#include <dlfcn.h>
#include <ucontext.h>

#include "worker.h"

namespace metal_emulator {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP};
struct sigaction previous[64];

void pass_on(int signal, siginfo_t* info, void* context) {
  const struct sigaction& handler = previous[signal];
  if (handler.sa_flags & SA_SIGINFO) {
    handler.sa_sigaction(signal, info, context);
  } else if (handler.sa_handler == SIG_DFL || handler.sa_handler == SIG_IGN) {
    ::signal(signal, SIG_DFL); // the instruction runs again and ends the process
  } else {
    handler.sa_handler(signal);
  }
}

void on_signal(int signal, siginfo_t* info, void* context) {
  Worker* worker = Worker::current_or_null();
  if (!worker || !worker->on_fiber()) {
    pass_on(signal, info, context);
    return;
  }
  const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  constexpr long kWrite = 2; // of a page fault's error code
  worker->fail_fault(
      info->si_addr,
      registers[REG_ERR] & kWrite,
      reinterpret_cast<const void*>(registers[REG_RIP]),
      signal);
}

} // namespace

void install_fault_handlers() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int signal : kSignals) {
      sigaction(signal, &action, &previous[signal]);
    }
  });
}

uint64_t library_offset(const void* pc) {
  Dl_info info = {};
  if (!dladdr(pc, &info)) {
    return 0;
  }
  return static_cast<const char*>(pc) - static_cast<const char*>(info.dli_fbase);
}

} // namespace metal_emulator
