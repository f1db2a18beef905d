// What tests ask and set beyond CUDA's interface.
#include "driver.h"

using namespace stand_in;

#define WEIR_CONTROL extern "C" __attribute__((visibility("default")))

namespace {
uint64_t count(const std::map<std::string, uint64_t>& counts, const char* name) {
    uint64_t sum = 0;
    for (const auto& [call, times] : counts)
        if (!name || call == name) sum += times;
    return sum;
}
}  // namespace

// As at the start: all memory, streams, errors, settings and counts are gone, handles of the host too.
WEIR_CONTROL void weir_stand_in_reset() {
    auto& state = driver();
    std::lock_guard guard(state.mutex);
    state.settings = {};
    state.streams.clear();
    state.streams[nullptr] = std::make_shared<Stream>();
    state.events.clear();
    state.graphs.clear();
    state.executables.clear();
    state.modules.clear();
    state.memory.clear();
    state.memory.total = size_t(1) << 30;
    state.pinned.clear();
    state.error = SUCCESS;
    state.message.clear();
    state.initialized = false;
    state.launches = state.executions = 0;
    state.calls.clear();
    state.waits.clear();
    state.released.notify_all();
}

// How often a function of the interface was called, or all of them (null).
WEIR_CONTROL uint64_t weir_stand_in_calls(const char* name) {
    std::lock_guard guard(driver().mutex);
    return count(driver().calls, name);
}

// How often the host waited in a function of the interface, or in any (null).
WEIR_CONTROL uint64_t weir_stand_in_waits(const char* name) {
    std::lock_guard guard(driver().mutex);
    return count(driver().waits, name);
}

// How many kernels have run.
WEIR_CONTROL uint64_t weir_stand_in_executions() {
    std::lock_guard guard(driver().mutex);
    return driver().executions;
}

// Copies what the context failed of, as text with a zero at its end; returns the bytes without it.
WEIR_CONTROL size_t weir_stand_in_message(char* text, size_t bytes) {
    std::lock_guard guard(driver().mutex);
    const auto& message = driver().message;
    if (bytes > 0) text[message.copy(text, bytes - 1)] = 0;
    return message.size();
}

WEIR_CONTROL void weir_stand_in_set_devices(int count) {
    std::lock_guard guard(driver().mutex);
    driver().settings.devices = count;
}

WEIR_CONTROL void weir_stand_in_set_driver_version(int version) {
    std::lock_guard guard(driver().mutex);
    driver().settings.driver_version = version;
}

WEIR_CONTROL void weir_stand_in_refuse_context(int error) {
    std::lock_guard guard(driver().mutex);
    driver().settings.context_error = error;
}

WEIR_CONTROL void weir_stand_in_set_capability(int major, int minor) {
    std::lock_guard guard(driver().mutex);
    driver().settings.capability_major = major;
    driver().settings.capability_minor = minor;
}

// Bytes of the device's memory in use.
WEIR_CONTROL size_t weir_stand_in_used_memory() {
    std::lock_guard guard(driver().mutex);
    return driver().memory.used();
}

WEIR_CONTROL void weir_stand_in_set_memory(size_t bytes) {
    std::lock_guard guard(driver().mutex);
    driver().memory.total = bytes;
}

// 0 forward, 1 reverse, 2 by the seed.
WEIR_CONTROL void weir_stand_in_set_order(int order, uint64_t seed) {
    std::lock_guard guard(driver().mutex);
    driver().settings.schedule.order = Order(order);
    driver().settings.schedule.seed = seed;
}

WEIR_CONTROL void weir_stand_in_set_workers(unsigned workers) {
    std::lock_guard guard(driver().mutex);
    driver().settings.schedule.workers = workers;
}

WEIR_CONTROL void weir_stand_in_set_memory_checks(int on) {
    std::lock_guard guard(driver().mutex);
    driver().settings.check_memory = on != 0;
}

// The launch that comes after `after` more, of a kernel or a graph, is refused with this error.
WEIR_CONTROL void weir_stand_in_fail_launch(uint64_t after, int error) {
    std::lock_guard guard(driver().mutex);
    driver().settings.failing_launch = driver().launches + after;
    driver().settings.failure = error;
}

// The kernel that runs after `after` more ends the context with this error, which a later call then tells.
WEIR_CONTROL void weir_stand_in_fail_execution(uint64_t after, int error) {
    std::lock_guard guard(driver().mutex);
    driver().settings.failing_execution = driver().executions + after;
    driver().settings.failure = error;
}

// While on, no queued work runs: queries say that it is not ready, waits do not return.
WEIR_CONTROL void weir_stand_in_hang(int on) {
    std::lock_guard guard(driver().mutex);
    driver().settings.hang = on != 0;
    driver().released.notify_all();
}

// Device bytes that no kernel may change until `unguard`; 0 if they are no device memory.
WEIR_CONTROL int weir_stand_in_guard(const void* pointer, size_t bytes) {
    std::lock_guard guard(driver().mutex);
    return driver().memory.guard(pointer, bytes);
}

WEIR_CONTROL void weir_stand_in_unguard() {
    std::lock_guard guard(driver().mutex);
    driver().memory.unguard();
}
