// The driver's state and the rules that all of its functions share.
#include "driver.h"

#include <cstdio>

namespace stand_in {

constinit thread_local void* current_context = nullptr;

Driver& driver() {
    // Never taken down: other threads may still call while the process ends.
    static Driver& instance = *[] {
        auto* driver = new Driver;
        driver->streams[nullptr] = std::make_shared<Stream>();
        return driver;
    }();
    return instance;
}

std::shared_ptr<Stream> Driver::stream(void* handle) {
    // The two handles that name the default stream of the context and of the thread.
    if (handle == reinterpret_cast<void*>(1) || handle == reinterpret_cast<void*>(2)) handle = nullptr;
    const auto found = streams.find(handle);
    return found == streams.end() ? nullptr : found->second;
}

bool Driver::is_pinned(const void* pointer, size_t bytes) const {
    const auto start = reinterpret_cast<uintptr_t>(pointer);
    const auto found = pinned.upper_bound(start);
    return found != pinned.end() && found->second.first <= start && start + bytes <= found->first;
}

void Driver::fail(int code, std::string what) {
    if (error != SUCCESS) return;
    error = code;
    message = std::move(what);
    std::fprintf(stderr, "stand-in: %s\n", message.c_str());
}

void Driver::run_all() {
    for (const auto& [handle, stream] : streams) stream->run_to(stream->end());
}

void enqueue(Stream& stream, std::function<void()> run) {
    stream.push({[run = std::move(run)] {
                     if (driver().error == SUCCESS) run();
                 },
                 {}});
}

Call::Call(const char* name) : lock_(driver().mutex), name_(name) { ++driver().calls[name]; }

int Call::ready() const {
    if (driver().error != SUCCESS) return driver().error;
    return current_context ? SUCCESS : INVALID_CONTEXT;
}

bool Call::wait() {
    ++driver().waits[name_];
    driver().released.wait(lock_, [] { return !driver().settings.hang; });
    return driver().error == SUCCESS;
}

}  // namespace stand_in
