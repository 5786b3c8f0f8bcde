"""What sessions see of each other's objects. Each scenario opens sessions with the same graph and records what they see."""
SCENARIOS = []
# Scenarios that reset a container.
RESETTING = []
# Scenarios that use an object after the session that made it.
OUTLIVING = []


def scenario(run):
    SCENARIOS.append(run)
    return run


def resetting(run):
    RESETTING.append(run)
    return scenario(run)


def outliving(run):
    OUTLIVING.append(run)
    return scenario(run)


@outliving
def one_after_the_other(s):
    with s.open() as a:
        a.touch()
        a.look()
    with s.open() as b:
        b.look()
        b.touch()
        b.look()


@scenario
def side_by_side(s):
    with s.open() as a, s.open() as b:
        a.touch()
        b.look()
        b.touch()
        a.look()
        a.touch()
        b.look()


@outliving
def after_the_other_is_closed(s):
    with s.open() as b:
        with s.open() as a:
            a.touch()
            b.touch()
        b.look()


@scenario
def through_two_masters(s):
    with s.open(0) as a, s.open(1) as b:
        a.touch()
        b.look()
        b.touch()
        a.look()


@scenario
def of_an_isolated_session(s):
    with s.open() as a, s.open(isolate=True) as b, s.open(isolate=True) as c:
        a.touch()
        b.look()
        b.touch()
        c.look()
        a.look()


@resetting
def after_a_reset(s):
    with s.open() as a:
        a.touch()
    s.reset(0)
    with s.open() as b:
        b.look()
        b.touch()
        b.look()


@resetting
def of_a_session_that_another_master_resets(s):
    with s.open(1) as a:
        a.touch()
        s.reset(0)
        a.look()


@scenario
def in_an_extended_graph(s):
    with s.open() as a:
        a.touch()
        a.extend()
        a.look()
