// Runs queued work, as late as it may.
#include "queue.h"

#include <utility>

namespace stand_in {

void Stream::push(Work work) {
    if (capture) capture->work.push_back(std::move(work));
    else queue.push_back(std::move(work));
}

void Stream::run_to(uint64_t position) {
    while (done < position && !queue.empty() && !running) {
        running = true;
        const Work work = std::move(queue.front());
        if (work.wait.stream) work.wait.stream->run_to(work.wait.position);
        if (work.run) work.run();
        queue.pop_front();
        ++done;
        running = false;
    }
}

}  // namespace stand_in
