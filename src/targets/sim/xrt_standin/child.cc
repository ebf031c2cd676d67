#include "targets/sim/xrt_standin/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <mutex>
#include <system_error>
#include <utility>

extern char** environ;

namespace ort_aie::sim {
namespace {

// The child's descriptors.
constexpr int kSocket = 3;
constexpr int kMemory = 4;

// A reply takes as long as the simulation does. This limits the wait for one that never comes.
constexpr int kPatienceSeconds = 1800;

std::string Python() {
  const char* const python = std::getenv("ORT_AIE_SIM_PYTHON");
  return python != nullptr && *python != '\0' ? python : "python3";
}

// The process id. Throws std::system_error.
pid_t Spawn(const std::string& device, int socket, int memory) {
  const std::string python = Python();
  // -P: the working directory may be the package's source folder.
  std::string arguments[] = {python,     "-P",
                             "-m",       "ort_aie_ep.modelled_npu",
                             "--device", device,
                             "--socket", std::to_string(kSocket),
                             "--memory", std::to_string(kMemory)};
  char* argv[std::size(arguments) + 1] = {};
  for (size_t i = 0; i < std::size(arguments); ++i) argv[i] = arguments[i].data();

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, socket, kSocket);
  posix_spawn_file_actions_adddup2(&actions, memory, kMemory);
  // In its own process group, because the host must handle an interrupt from the terminal.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // Default signal handling, as programs expect: a host may ignore SIGCHLD, and the child compiles
  // kernels.
  sigset_t signals;
  sigfillset(&signals);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  pid_t process = 0;
  const int error = posix_spawnp(&process, python.c_str(), &actions, &attributes, argv, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::system_error(error, std::generic_category(), python);
  return process;
}

class Process : public Conversation {
 public:
  Process(std::string device, int memory, std::atomic<int>* id)
      : device_(std::move(device)), memory_(memory), id_(id) {}

  ~Process() override {
    if (socket_ >= 0) {
      const std::string stop = "{\"op\":\"stop\"}\n";
      send(socket_, stop.data(), stop.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    End(/*kill=*/false);
  }

  Json Ask(const Json& request) override {
    if (!lost_.empty()) throw ChildLost(lost_);
    try {
      if (socket_ < 0) Start();
      Send(request.dump() + "\n");
      return Json::parse(Line());
    } catch (const std::exception& error) {
      lost_ = "the process of the modelled NPU is gone: " + std::string(error.what());
      End(/*kill=*/true);
      throw ChildLost(lost_);
    }
  }

  void Kill() override {
    if (process_ > 0) kill(process_, SIGKILL);
  }

 private:
  void Start() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      throw std::system_error(errno, std::generic_category(), "socketpair");
    }
    socket_ = ends[0];
    const int other = fcntl(ends[1], F_DUPFD_CLOEXEC, 16);  // above kSocket and kMemory
    close(ends[1]);
    try {
      process_ = Spawn(device_, other, memory_);
    } catch (...) {
      close(other);
      throw;
    }
    close(other);
    id_->store(process_);
  }

  void Send(const std::string& line) {
    size_t sent = 0;
    while (sent < line.size()) {
      const ssize_t count = send(socket_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw std::system_error(errno, std::generic_category(), "request");
      sent += static_cast<size_t>(count);
    }
  }

  std::string Line() {
    for (;;) {
      const size_t end = received_.find('\n');
      if (end != std::string::npos) {
        std::string line = received_.substr(0, end);
        received_.erase(0, end + 1);
        return line;
      }
      pollfd wait{socket_, POLLIN, 0};
      const int ready = poll(&wait, 1, kPatienceSeconds * 1000);
      if (ready < 0 && errno == EINTR) continue;
      if (ready == 0) throw std::runtime_error("no reply came");
      char buffer[4096];
      const ssize_t count = recv(socket_, buffer, sizeof buffer, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw std::system_error(errno, std::generic_category(), "reply");
      if (count == 0) throw std::runtime_error("it has ended");
      received_.append(buffer, static_cast<size_t>(count));
    }
  }

  void End(bool kill) {
    if (kill) Kill();
    if (socket_ >= 0) close(std::exchange(socket_, -1));
    id_->store(0);
    if (process_ <= 0) return;
    while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
    }
    process_ = 0;
  }

  std::string device_;
  int memory_;
  std::atomic<int>* id_;
  int socket_ = -1;
  pid_t process_ = 0;
  std::string received_;
  std::string lost_;
};

}  // namespace

struct Child::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void(Conversation&)>> jobs;
  bool stop = false;
  std::atomic<int> process{0};
};

// The kernel ends the child together with the thread that started it. So this thread starts it, and
// stays.
Child::Child(std::string device, int memory) : state_(std::make_shared<State>()) {
  const int own = fcntl(memory, F_DUPFD_CLOEXEC, 16);
  thread_ = std::thread([state = state_, device = std::move(device), own] {
    {
      Process process(device, own, &state->process);
      for (;;) {
        std::unique_lock lock(state->mutex);
        state->changed.wait(lock, [&] { return state->stop || !state->jobs.empty(); });
        if (state->jobs.empty()) break;
        auto job = std::move(state->jobs.front());
        state->jobs.pop_front();
        lock.unlock();
        job(process);
      }
    }
    close(own);
  });
}

Child::~Child() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_one();
  // A job may hold the last reference to the device.
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void Child::Post(std::function<void(Conversation&)> job) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->jobs.push_back(std::move(job));
  }
  state_->changed.notify_one();
}

Json Child::Ask(Json request) {
  auto reply = std::make_shared<std::promise<Json>>();
  std::future<Json> future = reply->get_future();
  Post([reply, request = std::move(request)](Conversation& conversation) {
    try {
      reply->set_value(conversation.Ask(request));
    } catch (...) {
      reply->set_exception(std::current_exception());
    }
  });
  return future.get();
}

int Child::process() const { return state_->process.load(); }

}  // namespace ort_aie::sim
