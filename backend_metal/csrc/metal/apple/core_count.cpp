// The registry of devices knows the number of cores, which Metal does not tell. IOKit is opened
// when it is asked, so that nothing but MLX's own libraries has to be linked.
#include <dlfcn.h>

#include <cstdint>

#include "metal/device_limits.h"

namespace pomona::metal {

namespace {

using Object = const void*; // of CoreFoundation
using Service = uint32_t; // of IOKit: a Mach port

constexpr uint32_t kUtf8 = 0x08000100; // kCFStringEncodingUTF8
constexpr long kInt32 = 3; // kCFNumberSInt32Type

class Library {
 public:
  explicit Library(const char* path) : handle_(dlopen(path, RTLD_LAZY)) {}
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (handle_) {
      dlclose(handle_);
    }
  }

  template <typename Function>
  Function* find(const char* name) const {
    return handle_ ? reinterpret_cast<Function*>(dlsym(handle_, name)) : nullptr;
  }

 private:
  void* handle_;
};

int ask() {
  Library foundation(
      "/System/Library/Frameworks/CoreFoundation.framework/CoreFoundation");
  Library kit("/System/Library/Frameworks/IOKit.framework/IOKit");
  auto make_string = foundation.find<Object(Object, const char*, uint32_t)>(
      "CFStringCreateWithCString");
  auto read_number = foundation.find<bool(Object, long, void*)>("CFNumberGetValue");
  auto type_of = foundation.find<unsigned long(Object)>("CFGetTypeID");
  auto number_type = foundation.find<unsigned long()>("CFNumberGetTypeID");
  auto release = foundation.find<void(Object)>("CFRelease");
  auto matching = kit.find<Object(const char*)>("IOServiceMatching");
  auto find_service = kit.find<Service(uint32_t, Object)>("IOServiceGetMatchingService");
  auto property =
      kit.find<Object(Service, Object, Object, uint32_t)>("IORegistryEntryCreateCFProperty");
  auto release_service = kit.find<int(Service)>("IOObjectRelease");
  if (!make_string || !read_number || !type_of || !number_type || !release || !matching ||
      !find_service || !property || !release_service) {
    return 0;
  }
  // Takes the dictionary of what to match over.
  Service gpu = find_service(0, matching("AGXAccelerator"));
  if (gpu == 0) {
    return 0;
  }
  int32_t cores = 0;
  Object key = make_string(nullptr, "gpu-core-count", kUtf8);
  if (Object value = property(gpu, key, nullptr, 0)) {
    if (type_of(value) == number_type()) {
      read_number(value, kInt32, &cores);
    }
    release(value);
  }
  release(key);
  release_service(gpu);
  return cores;
}

} // namespace

int gpu_core_count() {
  static const int cores = ask();
  return cores;
}

} // namespace pomona::metal
