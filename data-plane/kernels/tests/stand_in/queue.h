// Streams, events and graphs: work is queued, and runs only when the host waits for something that needs it.
//
// That is as late as CUDA allows. Work that nothing waited for has not run, so a missing event shows as data that is
// not there, and a host buffer that is changed too early shows as changed data.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace stand_in {

struct Stream;

// A place in a stream: all work before `position`.
struct Mark {
    std::shared_ptr<Stream> stream;
    uint64_t position = 0;
};

// One piece of work. What it does is bound in; waits for another stream are kept apart, for the queue to follow them.
struct Work {
    std::function<void()> run;
    Mark wait;
};

struct Graph {
    std::vector<Work> work;
    // Of an executable one: the device's memory that it takes.
    void* memory = nullptr;
};

struct Stream : std::enable_shared_from_this<Stream> {
    std::deque<Work> queue;
    // How much has run since the stream was made; a mark counts from there.
    uint64_t done = 0;
    // True while work of this stream runs, against circles.
    bool running = false;
    // Where work goes instead of the queue while a capture is under way, and whether this stream began it.
    std::shared_ptr<Graph> capture;
    bool began_capture = false;
    bool capture_failed = false;

    void push(Work work);
    uint64_t end() const { return done + queue.size(); }
    // Runs the work before `position`, and first what that waits for.
    void run_to(uint64_t position);
};

struct Event {
    Mark mark;
    // Of the last record, if a capture took it.
    std::shared_ptr<Graph> captured;
    bool recorded = false;
    // How often the host asked in vain: after a few times the work runs, as it would on a device.
    unsigned queries = 0;
    // When the work was reached, for elapsed times.
    std::shared_ptr<int64_t> nanoseconds;
};

}  // namespace stand_in
