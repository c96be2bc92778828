"""The protocol's points, and for each the tests that were seen to fail without it.

The numbers are those of the rules and repairs in ``docs/decisions``; those that went into others
have no test of their own. Every test here failed when its point was taken out of the code by
hand, one sabotage at a time; more tests carry a point's number than are listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

POINTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        # -- the supervisor --
        "S1": ("test_S1_a_question_about_somebody_unknown_is_answered_that_it_is_unrecorded",),
        "S2": (
            "test_S2_who_wants_to_stay_and_is_unrecorded_keeps_references_and_subscribes",
            "test_S2_one_that_left_and_is_still_counted_on_says_so_to_the_supervisor",
            "test_S2_who_wants_to_leave_and_is_let_go_drops_everything",
            "test_S2_who_wants_to_leave_answers_a_configuration_by_saying_so",
            "test_S2_who_wants_to_leave_says_so_at_every_timeout",
        ),
        "S3": ("test_S3_a_request_is_answered_from_the_repaired_database",),
        "S4": ("test_S4_of_several_copies_of_a_node_the_lowest_index_stays",),
        "S5": ("test_S5_a_label_that_l_never_produces_counts_as_infinity_and_is_moved_first",),
        "S6": (
            "test_S6_any_cursor_is_taken_modulo_n",
            "test_S6_an_empty_roster_has_nobody_to_tell",
        ),
        "S7": (
            "test_S7_after_a_change_nobody_is_its_own_neighbour_or_the_leavers",
            "test_S7_the_last_member_moves_into_the_gap_and_is_told_its_new_place",
        ),
        "S8": (
            "test_S8_a_configuration_is_ones_label_and_the_two_labels_beside_it",
            "test_S8_a_configuration_brings_the_label",
        ),
        "S9": (
            "test_S9_those_whose_configuration_the_repair_changes_must_hear_of_it",
            "test_S9_the_audit_finds_a_list_that_contradicts_itself_when_it_comes_to_the_slot",
        ),
        "S10": (
            "test_S10_requests_that_name_nobody_the_supervisor_or_a_suspect_are_ignored",
            "test_S10_a_message_from_the_suspect_itself_clears_the_suspicion",
            "test_S10_a_message_that_does_not_say_whose_it_is_is_dropped",
            "test_S10_a_suspect_that_waits_for_an_answer_gets_none",
            "test_S10_a_suspicion_is_forgotten_after_64_timeouts",
        ),
        "S11": (
            "test_S11_a_newcomer_and_those_beside_it_are_told",
            "test_S11_two_rounds_after_a_join_the_ring_is_right",
        ),
        # -- the list and the ring --
        "B2": (
            "test_B2_void_neighbours_are_dropped_at_a_timeout",
            "test_B2_a_configuration_cannot_bring_void_references",
            "test_B2_a_slot_held_by_ourselves_or_the_supervisor_is_emptied",
        ),
        "B3": (
            "test_B3_a_reference_without_a_label_cannot_be_made",
            "test_B3_no_left_neighbour_is_minus_infinity_and_no_right_one_plus_infinity",
        ),
        "B4": (
            "test_B4_a_wrap_edge_that_has_moved_on_its_side_stays_the_wrap_edge",
            "test_B4_a_wrap_edge_that_has_moved_to_our_other_side_goes_to_the_line_only",
        ),
        "B5": (
            "test_B5_a_nearer_candidate_that_speaks_for_itself_is_put_on_the_line_at_once",
            "test_B5_the_wrap_edge_introduced_once_more_changes_nothing",
        ),
        "B6": ("test_B6_a_wrap_edge_with_nobody_on_its_side_is_linearized_as_well",),
        "B7": (
            "test_B7_so_is_an_introduction",
            "test_B7_without_a_label_a_check_is_answered_by_asking_to_be_forgotten",
        ),
        "B8": ("test_B8_without_a_label_one_subscribes_and_does_nothing_else",),
        "B9": ("test_B9_a_node_is_forgotten_as_neighbour_and_as_shortcut",),
        "B11": ("test_B11_an_old_neighbour_beyond_both_new_ones_is_passed_on_instead",),
        "B12": (
            "test_B12_an_old_neighbour_at_the_same_distance_is_shown_to_the_supervisor",
            "test_B12_one_that_the_configuration_names_is_not_whatever_its_label_was",
        ),
        "B13": (
            "test_B13_at_the_left_end_pred_becomes_the_wrap_edge",
            "test_B13_references_to_the_dead_do_not_stay",
        ),
        "B14": (
            "test_B14_a_left_neighbour_counts_only_after_it_has_been_put_right",
            "test_B14_wrap_edge_and_shortcuts_are_not_consulted",
        ),
        # -- shortcuts --
        "C2": (
            "test_C2_a_chain_runs_over_the_wrap_from_1_to_0",
            "test_C2_chains_are_bounded_and_lead_outwards",
        ),
        "C3": ("test_C3_a_ring_neighbour_and_a_shortcut_are_introduced_in_the_mixed_case",),
        "C4": ("test_C4_nobody_is_introduced_to_itself_to_us_or_to_somebody_unknown",),
        "C5": ("test_C5_what_is_dropped_is_probed",),
        # -- rules --
        "R1": (
            "test_R1_a_new_holder_takes_the_slot_and_the_old_one_is_probed",
            "test_R1_a_shortcut_for_which_there_is_no_slot_is_probed",
            "test_R1_a_displaced_shortcut_is_asked_who_it_is",
            "test_R1_stale_shortcuts_are_healed_without_help_of_the_line",
            "test_R1_alone_ends_the_livelock_of_the_papers_pseudocode",
        ),
        "R2": (
            "test_R2_the_word_of_others_changes_no_edge",
            "test_R2_neighbours_do_not_change_by_the_word_of_others",
            "test_R2_wrong_beliefs_about_neighbours_do_not_spread",
        ),
        "R8": (
            "test_R8_a_peer_with_our_own_label_is_a_case_for_the_supervisor",
            "test_R8_somebody_else_with_our_label_is_not_stored_but_asked_about",
        ),
        "R9": (
            "test_R9_a_configuration_that_still_names_the_neighbour_doubles_the_wait",
            "test_R9_an_unanswered_question_is_asked_again_soon_however_long_the_back_off",
            "test_R9_a_configuration_that_nobody_asked_for_confirms_nothing",
            "test_R9_ticks_that_cannot_be_count_as_none",
            "test_R9_nobody_asks_while_both_neighbours_are_heard",
            "test_R9_the_word_of_others_about_a_neighbour_does_not_count",
            "test_R9_who_knows_nobody_but_a_dead_neighbour_is_found",
        ),
        "R10": (
            "test_R10_a_neighbour_that_has_moved_away_makes_us_ask_about_both_of_us",
            "test_R10_a_displaced_node_is_handed_over_once",
            "test_R10_an_unsubscribe_costs_few_introductions",
        ),
        "R11": (
            "test_R11_one_that_learns_it_is_unrecorded_wakes_all_it_knows_and_then_subscribes",
            "test_R11_one_without_a_label_wakes_nobody",
            "test_R11_a_lost_database_is_noticed_by_all_in_few_rounds",
        ),
        "R12": (
            "test_R12_a_stored_label_under_another_id_makes_us_ask_about_both_and_change_nothing",
            "test_R12_adjacent_members_that_were_replaced_find_their_places",
        ),
        "R13": (
            "test_R13_a_wrap_edge_of_one_in_the_middle_is_not_passed_on",
            "test_R13_messages_that_arrive_twice_do_not_multiply",
        ),
        "R14": (
            "test_R14_nobody_is_accused_before_the_sum_has_settled_after_a_change",
            "test_R14_a_node_that_is_two_children_is_counted_once",
            "test_R14_an_equal_digest_in_between_starts_the_count_again",
            "test_R14_the_weight_tells_pairs_of_label_and_node_apart",
            "test_R14_the_digest_follows_every_change_of_the_roster",
            "test_R14_label_0_puts_the_digest_into_its_question_and_nobody_else_does",
            "test_R14_the_digest_of_anybody_but_label_0_is_not_believed",
            "test_R14_two_swapped_members_are_found_before_round_robin_comes_to_them",
        ),
        "R15": (
            "test_R15_neither_members_nor_strangers_wait_for_the_other",
            "test_R15_they_come_last_for_eight_timeouts",
            "test_R15_members_have_a_budget_of_64_or_an_eighth_of_all_who_are_known",
            "test_R15_a_lost_database_does_not_make_the_supervisor_shout",
        ),
        "k+1": (
            "test_k_plus_1_is_the_exponent_of_the_machine_and_k_without_the_rule",
            "test_k_plus_1_is_the_exponent_with_which_a_label_of_length_k_asks",
            "test_k_plus_1_keeps_the_supervisor_below_one_request_a_round",
        ),
    }
)
