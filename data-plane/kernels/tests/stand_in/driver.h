// The state behind libcuda.so.1's functions, one for the process, and what tests can set.
#pragma once
#include <array>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "grid.h"
#include "memory.h"
#include "queue.h"

// Values of CUresult.
enum Result : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    FILE_NOT_FOUND = 301,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901,
    STREAM_CAPTURE_UNMATCHED = 903,
};

namespace stand_in {

constexpr size_t DYNAMIC_SHARED_DEFAULT = 48 * 1024;
constexpr size_t DYNAMIC_SHARED_MAX = 227 * 1024;
constexpr unsigned THREADS_MAX = 1024;

struct Function {
    Kernel kernel;
    size_t dynamic_bytes_max = DYNAMIC_SHARED_DEFAULT;
};

struct Module {
    std::map<std::string, std::unique_ptr<Function>> functions;
};

// What a test can set; `reset` puts back what is written here.
struct Settings {
    int devices = 1;
    int driver_version = 13000;
    int capability_major = 9, capability_minor = 0;
    int context_error = 0;  // of opening a device
    Schedule schedule;
    bool check_memory = true;
    // The launch with this number, counted from 0 since the last reset, fails with this error: at once, or when it runs.
    std::optional<uint64_t> failing_launch, failing_execution;
    int failure = LAUNCH_FAILED;
    // No work runs: queries find nothing ready, waits do not come back until it is taken off.
    bool hang = false;
};

struct Driver {
    // Held by every function of the interface; released while a wait hangs.
    std::mutex mutex;
    std::condition_variable released;
    Settings settings;
    Memory memory;
    bool initialized = false;
    // Keyed by the handles that the host has. The null stream is there from the start.
    std::map<void*, std::shared_ptr<Stream>> streams;
    std::map<void*, std::shared_ptr<Event>> events;
    std::map<void*, std::shared_ptr<Graph>> graphs;
    std::map<void*, std::shared_ptr<Graph>> executables;
    std::set<std::unique_ptr<Module>> modules;
    // Page-locked host memory by its end.
    std::map<uintptr_t, std::pair<uintptr_t, std::unique_ptr<unsigned char[]>>> pinned;
    // The error after which nothing works any more, and what it was about.
    int error = SUCCESS;
    std::string message;
    uint64_t launches = 0, executions = 0;
    std::map<std::string, uint64_t> calls, waits;

    std::shared_ptr<Stream> stream(void* handle);
    bool is_pinned(const void* pointer, size_t bytes) const;
    // Ends the context with an error that every later call returns.
    void fail(int code, std::string what);
    // Runs everything that is queued.
    void run_all();
};

Driver& driver();

// Queues work that is done only while the context is well.
void enqueue(Stream& stream, std::function<void()> run);

// Held for the length of an interface's function: takes the lock, counts the call.
class Call {
public:
    explicit Call(const char* name);

    // The context's error, or that this thread has no context.
    int ready() const;
    // Counts a wait of the host, and sits out a hang. False if the context has failed meanwhile.
    bool wait();

private:
    std::unique_lock<std::mutex> lock_;
    const char* name_;
};

// The context that is current for this thread; null is none.
extern constinit thread_local void* current_context;

}  // namespace stand_in

#define WEIR_API extern "C" __attribute__((visibility("default"))) int
