/* What the files of the simulator share. No other file includes this. */
#ifndef MU_SIM_IMPL_H
#define MU_SIM_IMPL_H

#include "sim.h"
#include "sim_child.h"

#include "core/buf.h"
#include "core/heap.h"
#include "core/list.h"

#define SIM_NAME_MAX     32
#define SIM_CHECKERS_MAX 8
#define SIM_RTO_NS       (200 * MU_NS_PER_MS) /* until something lost is sent again */
#define SIM_LINGER_NS    (5 * MU_NS_PER_S)    /* how long a closed connection still delivers */
#define SIM_TIMEOUT_NS   (60 * MU_NS_PER_S)   /* until the kernel gives up a silent end */
#define SIM_DIAL_NS      (30 * MU_NS_PER_S)   /* until an unanswered dial is given up */

/* What a step can be: the words of the trace. X(enum suffix, text) */
#define SIM_KIND_MAP(X)                                                                            \
    X(START, "start")       /* a process starts. subject: how often it was started */              \
    X(TIMER, "timer")       /* a timer fires. a: how late, in ns */                                \
    X(SYN, "syn")           /* a dial reaches its host. a: 1 there is a listener, 0 refused */     \
    X(ACCEPT, "accept")     /* a: 1 taken, 0 turned away */                                        \
    X(OPEN, "open")         /* the dialler learns that it is connected */                          \
    X(ARRIVE, "arrive")     /* bytes or their end. a: offered, b: used; 0 0: nothing or the end */ \
    X(ACK, "ack")           /* the sender has room again. a: bytes in flight, b: 1 writable */     \
    X(RST, "rst")           /* a reset comes in. a: the code, positive */                          \
    X(CLOSED, "closed")     /* the last callback. a: the status, positive */                       \
    X(UNLISTEN, "unlisten") /* the last callback of a listener */                                  \
    X(LINGER, "linger")     /* a closed connection stops trying */                                 \
    X(WORK, "work")         /* the body of some work runs */                                       \
    X(DONE, "done")         /* the owner of the work is told */                                    \
    X(FAULT, "fault")       /* a fault strikes. a: which (enum sim_fault_kind), b: its length */   \
    X(REBOOT, "reboot")     /* a killed process is started again */                                \
    X(AT, "at")             /* the scenario asked for this */                                      \
    X(CHILD, "child")     /* subject: pid; a: 1 started, 2 output, 3 exited, 4 gone; b: status */  \
    X(PROCESS, "process") /* a child or descendant acts. a: 1 it dies, b: word or status */        \
    X(STANDBY, "standby") /* a: 0 standbys wait, 1 the end, 2 the zygote dies; b: how many */      \
    X(HTTP, "http")       /* a: 0 a request arrives, 1 it fails, 2 data, 3 done; b: how much */

enum sim_kind {
#define SIM_KIND_ENUM(name, text) SIM_##name,
    SIM_KIND_MAP(SIM_KIND_ENUM)
#undef SIM_KIND_ENUM
};

/* Something that will happen. */
struct sim_action {
    struct mu_heap_node node;
    void (*run)(struct sim_action *action);
    struct mu_sim_proc *proc; /* put off while it is paused; NULL: an action of the world */
    enum sim_kind kind;
    uint64_t subject; /* for the trace */
};

/* One direction between two hosts. */
struct sim_link {
    bool drawn;
    uint64_t latency_ns;
    uint64_t busy_until_ns;
    uint64_t cut_until_ns;
};

struct mu_sim_heap {
    struct mu_list blocks;
    size_t count;
    struct mu_sim *sim;      /* whose faults make allocations fail; NULL: no allocation fails */
    struct mu_prng prng;     /* decides which ones fail */
    uint64_t short_until_ns; /* all of them fail until then */
};

struct mu_sim_host {
    struct mu_sim *sim;
    struct mu_list link; /* of sim->hosts */
    char name[SIM_NAME_MAX];
    size_t index;
    bool up;
    uint16_t next_port;
    uint64_t mono_base_ns; /* what its monotonic clock showed at `since_ns` */
    uint64_t since_ns;
    int64_t drift_ppm;
    int64_t wall_offset_ns;
    struct mu_list procs;
    struct mu_list disks;
    struct sim_link *links; /* to the host of that index */
    size_t link_count;
};

struct mu_sim_proc {
    struct mu_env env; /* first */
    struct mu_sim *sim;
    struct mu_sim_host *host;
    struct mu_list link; /* of host->procs */
    struct mu_sim_program program;
    bool alive;
    bool starting;
    bool exiting;
    bool exited; /* it ended by itself: only mu_sim_restart() starts it again */
    uint32_t starts;
    uint64_t paused_until_ns;
    struct mu_heap timers;
    mu_mono_t wake_for; /* the timer that `wake` is armed for */
    struct sim_action wake;
    struct sim_action start;
    struct sim_action reboot; /* after a fault killed it */
    bool doomed;              /* it is being killed */
    struct mu_sim_heap heap;
    struct mu_list ends;
    struct mu_list listeners;
    struct mu_list works;
    struct mu_prng entropy;
};

struct sim_checker {
    void (*check)(struct mu_sim *sim, void *arg);
    void *arg;
};

struct mu_sim {
    struct mu_sim_config config;
    struct mu_sim_faults faults;
    struct mu_prng prng;       /* of the environment */
    struct mu_prng fault_prng; /* of the faults that strike */
    struct mu_prng user_prng;
    struct mu_heap heap;
    uint64_t now_ns;
    uint64_t steps;
    uint64_t digest;
    uint64_t conn_seq;
    struct sim_action *current; /* the running action, until its line is written */
    struct mu_sim_proc *running;
    struct mu_list hosts;
    size_t host_count;
    uint64_t proc_count;
    struct mu_list pairs; /* all connections */
    struct mu_list ats;
    struct sim_checker checkers[SIM_CHECKERS_MAX];
    size_t checker_count;
    bool undecided;
    bool failed;
    char failure[512];
    struct sim_nemesis *nemesis;
    struct mu_list families; /* sim_child.c: children and what descends from them */
    struct mu_list zygotes;  /* sim_standby.c */
    const struct mu_peek *peek;
    mu_sim_exec *exec;
    void *exec_arg;
    int64_t last_pid;
    struct mu_list http_servers;
    struct mu_list exchanges;
};

/* sim.c */
/** Puts an action on the heap, or moves it if it is there. */
void sim_schedule(struct mu_sim *sim, struct sim_action *action, uint64_t at_ns);
void sim_cancel(struct mu_sim *sim, struct sim_action *action);
static inline bool sim_scheduled(const struct sim_action *action)
{
    return mu_heap_contains(&action->node);
}
/** Called around every call into the code of a process. */
void sim_enter(struct mu_sim_proc *proc);
void sim_leave(struct mu_sim_proc *proc);
mu_mono_t sim_host_mono(const struct mu_sim_host *host, uint64_t global_ns);
void sim_boot(struct mu_sim_host *host);

/* sim_env.c */
extern const struct mu_env_ops sim_env_ops;
void sim_env_init(struct mu_sim_proc *proc);
void sim_wake_rearm(struct mu_sim_proc *proc);
/** Drops the process's timers and work, without callbacks. */
void sim_env_drop(struct mu_sim_proc *proc);

/* sim_net.c and sim_conn.c */
struct sim_link *sim_link_get(struct mu_sim_host *from, struct mu_sim_host *to);
/** Returns when `n` bytes that are sent now arrive at the other end; they never overtake
 * `after_ns`. */
uint64_t sim_link_arrival(struct mu_sim_host *from, struct mu_sim_host *to, size_t n,
                          uint64_t after_ns);
bool sim_link_is_cut(struct mu_sim_host *from, struct mu_sim_host *to);
int sim_net_dial(struct mu_env *env, struct mu_conn *conn, const struct mu_addr *addr);
int sim_net_listen(struct mu_env *env, struct mu_listener *listener, struct mu_addr *addr);
void sim_net_unlisten(struct mu_env *env, struct mu_listener *listener);
void sim_net_sendv(struct mu_env *env, struct mu_conn *conn, const struct mu_span *spans,
                   size_t count, size_t *ret_taken);
void sim_net_resume(struct mu_env *env, struct mu_conn *conn);
void sim_net_finish(struct mu_env *env, struct mu_conn *conn);
void sim_net_close(struct mu_env *env, struct mu_conn *conn, bool abort);
void sim_net_peer(struct mu_env *env, const struct mu_conn *conn, char *buf, size_t cap);
/** The process is gone: its listeners vanish, and the kernel ends its connections, or does not. */
void sim_net_drop(struct mu_sim_proc *proc, enum mu_sim_kill how);
/** The host is back: it resets the connections that it forgot. */
void sim_net_reboot(struct mu_sim_host *host);
/** Resets one connection by its place in the list; one end may learn of it only when it sends. */
void sim_net_reset_one(struct mu_sim *sim, uint64_t choice, bool both);
size_t sim_net_count(const struct mu_sim *sim);
/** A cut ended early or late: what waited flows. */
void sim_net_kick(struct mu_sim *sim, struct mu_sim_host *from, struct mu_sim_host *to);
/** Marks connections across a cut that will not survive it. */
void sim_net_doom(struct mu_sim_host *from, struct mu_sim_host *to);
void sim_net_free(struct mu_sim *sim);

/* sim_fault.c */
int sim_fault_init(struct mu_sim *sim);
void sim_fault_proc_init(struct mu_sim_proc *proc);
void sim_fault_stop(struct mu_sim *sim);
void sim_fault_free(struct mu_sim *sim);
/** Draws up to `max`, small numbers more often: half of the draws are below a tenth of it. */
uint64_t sim_draw_ns(struct mu_prng *prng, uint64_t max);

/* sim_http.c */
int sim_http_start(struct mu_env *env, struct mu_http *http, const struct mu_http_request *request);
void sim_http_resume(struct mu_env *env, struct mu_http *http);
void sim_http_cancel(struct mu_env *env, struct mu_http *http);
/** The process is gone: no callback follows, but what is on its way may arrive. */
void sim_http_drop(struct mu_sim_proc *proc);
/** A cut ended early. */
void sim_http_kick(struct mu_sim *sim, struct mu_sim_host *from, struct mu_sim_host *to);
bool sim_http_idle(const struct mu_sim_proc *proc);
void sim_http_free(struct mu_sim *sim);

/* sim_disk.c */
void sim_disk_drop(struct mu_sim_proc *proc);
void sim_disk_free(struct mu_sim_host *host);
size_t sim_disk_held(const struct mu_sim_proc *proc);

/* sim_child.c */
int sim_child_spawn(struct mu_env *env, struct mu_child *child, const struct mu_spawn *what);
int sim_child_signal(struct mu_env *env, struct mu_child *child, int signal,
                     enum mu_child_scope scope);
void sim_child_resume(struct mu_env *env, struct mu_child *child, enum mu_stream stream);
void sim_child_leave(struct mu_env *env, struct mu_child *child, int signal, uint64_t grace_ms);
/** Returns how many children of the process have not had their last callback. */
size_t sim_child_held(const struct mu_sim_proc *proc);
/** The process is gone: its children will die. */
void sim_child_drop(struct mu_sim_proc *proc, enum mu_sim_kill how);
void sim_child_free(struct mu_sim *sim);

/* sim_standby.c */
int sim_standbys_open(struct mu_env *env, struct mu_standbys *standbys,
                      const struct mu_spawn *what);
void sim_standbys_want(struct mu_env *env, struct mu_standbys *standbys, uint32_t count);
void sim_standbys_close(struct mu_env *env, struct mu_standbys *standbys);
/** Takes one away, for a child; MUSTER_EAGAIN if none waits. */
int sim_standby_take(struct mu_standbys *standbys);
/** How many zygotes the process has whose end it was not told of. */
size_t sim_standbys_held(const struct mu_sim_proc *proc);
/** Without callbacks; `proc` NULL: all there are. */
void sim_standbys_drop(struct mu_sim *sim, const struct mu_sim_proc *proc);

/* sim_alloc.c */
/** Makes `heap` the owner of later allocations; returns the previous one. NULL: the test. */
struct mu_sim_heap *sim_heap_swap(struct mu_sim_heap *heap);
void sim_heap_init(struct mu_sim_heap *heap);
/** Frees everything that the heap holds. */
void sim_heap_drop(struct mu_sim_heap *heap);
/** Returns whether an allocation fails now; draws from the heap's prng. */
bool sim_heap_fails(struct mu_sim_heap *heap);
/** Returns whether this allocator was linked in. */
bool sim_heap_in_place(void);

/* sim_x25519.c */
/** Returns whether this key exchange was linked in. */
bool sim_x25519_in_place(void);

/* sim_trace.c */
/** Writes the line of the running step; the first call in a step counts. */
void sim_trace_step(struct mu_sim *sim, uint64_t a, uint64_t b);

#endif
