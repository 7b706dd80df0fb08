/* Who of many strangers has to go, and whose turn it is. */
#include "service/lock/guests.h"

#include "unit.h"

#define MANY 64

static struct mu_guest guests[MANY];

static const uint8_t *ip_of(uint8_t last)
{
    static uint8_t ip[MU_IP_LEN] = {[10] = 0xff, [11] = 0xff, [12] = 10};

    ip[15] = last;
    return ip;
}

static void open_book(struct mu_guests *book, size_t all, size_t of_address, size_t shaking,
                      size_t shaking_of_address)
{
    struct mu_lock_limits limits = {all, of_address, shaking, shaking_of_address};

    memset(guests, 0, sizeof(guests));
    assert_int_equal(mu_guests_init(book, &limits, 7), 0);
}

static void close_book(struct mu_guests *book)
{
    for (size_t i = 0; i < MANY; i++) {
        mu_guests_leave(book, &guests[i]);
    }
    assert_null(mu_guests_next(book));
    mu_guests_fini(book);
}

/* The number of who has to go for guest `i`, or -1. */
static int add(struct mu_guests *book, size_t i, uint8_t from)
{
    struct mu_guest *victim;
    int number = -1;

    assert_int_equal(mu_guests_add(book, &guests[i], from == 0 ? NULL : ip_of(from)), 0);
    while ((victim = mu_guests_over(book, &guests[i])) != NULL) {
        number = (int)(victim - guests);
        mu_guests_leave(book, victim);
    }
    return number;
}

static void test_guests_of_an_address_are_bounded(void **state)
{
    struct mu_guests book;

    (void)state;
    open_book(&book, 100, 3, 10, 10);
    assert_int_equal(add(&book, 0, 1), -1);
    assert_int_equal(add(&book, 1, 1), -1);
    assert_int_equal(add(&book, 2, 1), -1);
    assert_int_equal(add(&book, 3, 2), -1);
    /* The oldest who is silent goes. */
    assert_int_equal(add(&book, 4, 1), 0);
    mu_guests_move(&book, &guests[1], MU_GUEST_WAITING);
    assert_int_equal(add(&book, 5, 1), 2);
    /* Who has said all of its hello stays, and whoever comes in addition goes. */
    mu_guests_move(&book, &guests[4], MU_GUEST_WAITING);
    mu_guests_move(&book, &guests[5], MU_GUEST_WAITING);
    assert_int_equal(add(&book, 6, 1), 6);
    assert_int_equal(book.count, 4);
    close_book(&book);
}

static void test_guests_in_all_are_bounded_and_few_are_spared(void **state)
{
    struct mu_guests book;

    (void)state;
    open_book(&book, 12, 8, 10, 10);
    assert_int_equal(add(&book, 0, 9), -1); /* the only one of its address, and the oldest */
    for (size_t i = 1; i < 12; i++) {
        assert_int_equal(add(&book, i, (uint8_t)(1 + i % 2)), -1);
    }
    for (size_t i = 12; i < MANY; i++) {
        int victim = add(&book, i, (uint8_t)(1 + i % 3));

        assert_true(victim > 0);
        assert_int_equal(book.count, 12);
    }
    assert_int_equal(guests[0].stage, MU_GUEST_SILENT);
    close_book(&book);
}

static void test_guests_of_one_network_of_ipv6_are_one(void **state)
{
    struct mu_guests book;
    uint8_t ip[MU_IP_LEN] = {0x20, 1, 0x0d, 0xb8};

    (void)state;
    open_book(&book, 100, 2, 10, 10);
    for (uint8_t i = 0; i < 3; i++) {
        ip[15] = i;
        assert_int_equal(mu_guests_add(&book, &guests[i], ip), 0);
    }
    assert_ptr_equal(mu_guests_over(&book, &guests[2]), &guests[0]);
    mu_guests_leave(&book, &guests[0]);
    ip[7] = 1;
    assert_int_equal(mu_guests_add(&book, &guests[3], ip), 0);
    assert_null(mu_guests_over(&book, &guests[3]));
    close_book(&book);
}

static void test_guests_of_this_host_are_not_counted(void **state)
{
    struct mu_guests book;

    (void)state;
    open_book(&book, 4, 2, 1, 1);
    for (size_t i = 0; i < 40; i++) {
        assert_int_equal(add(&book, i, 0), -1);
        mu_guests_move(&book, &guests[i], MU_GUEST_WAITING);
    }
    for (size_t i = 0; i < 40; i++) {
        assert_ptr_equal(mu_guests_next(&book), &guests[i]);
        assert_null(mu_guests_surplus(&book));
    }
    close_book(&book);
}

static void test_turns_go_from_address_to_address(void **state)
{
    /* Ten of one address came before one of another, and one of a third. */
    static const size_t order[] = {0, 10, 11, 1, 2, 3};
    struct mu_guests book;

    (void)state;
    open_book(&book, 100, 100, 100, 100);
    for (size_t i = 0; i < 12; i++) {
        assert_int_equal(add(&book, i, (uint8_t)(i < 10 ? 1 : i)), -1);
        mu_guests_move(&book, &guests[i], MU_GUEST_BEGUN);
        mu_guests_move(&book, &guests[i], MU_GUEST_WAITING);
    }
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        assert_ptr_equal(mu_guests_next(&book), &guests[order[i]]);
    }
    close_book(&book);
}

static void test_handshakes_under_way_are_bounded(void **state)
{
    struct mu_guests book;

    (void)state;
    open_book(&book, 100, 100, 3, 2);
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(add(&book, i, (uint8_t)(i < 6 ? 1 : i)), -1);
        mu_guests_move(&book, &guests[i], MU_GUEST_WAITING);
    }
    /* Of one address two at a time. */
    assert_ptr_equal(mu_guests_next(&book), &guests[0]);
    assert_ptr_equal(mu_guests_next(&book), &guests[6]);
    assert_null(mu_guests_surplus(&book));
    assert_ptr_equal(mu_guests_next(&book), &guests[7]);
    assert_null(mu_guests_surplus(&book));
    assert_ptr_equal(mu_guests_next(&book), &guests[1]);
    /* The oldest of too many goes, which lets another one of its address in. */
    assert_ptr_equal(mu_guests_surplus(&book), &guests[0]);
    assert_null(mu_guests_next(&book));
    mu_guests_leave(&book, &guests[0]);
    assert_null(mu_guests_surplus(&book));
    assert_ptr_equal(mu_guests_next(&book), &guests[2]);
    close_book(&book);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guests_of_an_address_are_bounded),
        cmocka_unit_test(test_guests_in_all_are_bounded_and_few_are_spared),
        cmocka_unit_test(test_guests_of_one_network_of_ipv6_are_one),
        cmocka_unit_test(test_guests_of_this_host_are_not_counted),
        cmocka_unit_test(test_turns_go_from_address_to_address),
        cmocka_unit_test(test_handshakes_under_way_are_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
