BEGIN TRANSACTION;
CREATE TABLE "certificates" (
   "id" INTEGER PRIMARY KEY,
   "run_id" INTEGER NOT NULL REFERENCES "runs"("run_id"),
   "trial_id" INTEGER NOT NULL,
   "pairs" INTEGER,
   "gain" REAL,
   "gain_low" REAL,
   "gain_high" REAL,
   "alpha" REAL,
   "certified" INTEGER,
   "reason" TEXT,
   "finished_at" TEXT
);
INSERT INTO "certificates" VALUES(1,1,1,9,0.1,0.03,0.2,0.01,1,'9 pairs','2026-11-28T23:15:07Z');
CREATE TABLE column_descriptions (table_name TEXT, column_name TEXT, unit TEXT, description TEXT, PRIMARY KEY (table_name, column_name));
CREATE TABLE "runs" (
   "run_id" INTEGER PRIMARY KEY,
   "state" TEXT NOT NULL,
   "started_at" TEXT,
   "finished_at" TEXT,
   "host" TEXT,
   "pid" INTEGER,
   "size" INTEGER,
   "local_size" INTEGER,
   "cross_size" INTEGER,
   "versions" TEXT,
   "fingerprint" TEXT,
   "fingerprint_hash" TEXT NOT NULL,
   "seed" TEXT,
   "settings" TEXT,
   "csv_path" TEXT,
   "csv_key" TEXT,
   "retune" INTEGER,
   "best_trial_id" INTEGER
);
INSERT INTO "runs" VALUES(1,'done','2026-11-28T23:15:07Z','2026-11-28T23:15:07Z','node1',4242,3,3,1,'{"hvd-autotune": "0.29.0", "mpi": "5.0.11"}','{"cross_size":1,"fixed":{},"local_size":3,"size":3,"tensors":[["allreduce",4000],["allreduce",8]],"versions":{"hvd-autotune":"0.29.0","mpi":"5.0.11"}}','2c3352c8444d03789dede17961aa6b7a97a93cee5f481fa7322928e2688c8688','7','{"max": 20}','/data/log.csv.1','log.csv',0,1);
INSERT INTO "runs" VALUES(2,'unfinished','2026-11-28T23:15:07Z','2026-11-28T23:15:07Z','node1',4242,2,2,1,'{"hvd-autotune": "0.29.0", "mpi": "5.0.11"}','{"cross_size":1,"fixed":{},"local_size":2,"size":2,"tensors":[["allreduce",4000],["allreduce",8]],"versions":{"hvd-autotune":"0.29.0","mpi":"5.0.11"}}','8803d8a6de275ce29ef5af695e01437d605857f60b09e6cc6051b3506182b90d','7','{"max": 20}','/data/log.csv','log.csv',0,1);
CREATE TABLE "samples" (
   "id" INTEGER PRIMARY KEY,
   "run_id" INTEGER NOT NULL REFERENCES "runs"("run_id"),
   "trial_id" INTEGER NOT NULL,
   "epoch" INTEGER,
   "kind" TEXT,
   "pair" INTEGER,
   "steps" INTEGER,
   "duration_us" REAL,
   "payload_bytes" INTEGER,
   "exposed_us" REAL,
   "score" REAL,
   "finished_at" TEXT
);
INSERT INTO "samples" VALUES(1,1,0,0,'search',NULL,10,1234.5,40080,321.25,100.0,'2026-11-28T23:15:07Z');
INSERT INTO "samples" VALUES(2,1,1,0,'search',NULL,10,1234.5,40080,321.25,140.0,'2026-11-28T23:15:07Z');
INSERT INTO "samples" VALUES(3,2,0,0,'search',NULL,10,1234.5,40080,321.25,100.0,'2026-11-28T23:15:07Z');
INSERT INTO "samples" VALUES(4,2,1,1,'search',NULL,10,1234.5,40080,321.25,180.0,'2026-11-28T23:15:07Z');
INSERT INTO "samples" VALUES(5,2,2,2,'search',NULL,10,1234.5,40080,321.25,20.0,'2026-11-28T23:15:07Z');
CREATE TABLE "trials" (
   "id" INTEGER PRIMARY KEY,
   "run_id" INTEGER NOT NULL REFERENCES "runs"("run_id"),
   "trial_id" INTEGER NOT NULL,
   "hierarchical_allreduce" INTEGER,
   "hierarchical_allgather" INTEGER,
   "cache_capacity" INTEGER,
   "cycle_time_ms" REAL,
   "fusion_threshold_bytes" INTEGER,
   "state" TEXT,
   "score" REAL,
   "finished_at" TEXT
);
INSERT INTO "trials" VALUES(1,1,0,0,0,1024,1.0,67108864,'complete',100.0,'2026-11-28T23:15:07Z');
INSERT INTO "trials" VALUES(2,1,1,0,0,1024,1.0,4099,'complete',140.0,'2026-11-28T23:15:07Z');
INSERT INTO "trials" VALUES(3,2,0,0,0,1024,1.0,67108864,'complete',100.0,'2026-11-28T23:15:07Z');
INSERT INTO "trials" VALUES(4,2,1,0,0,1024,1.0,4099,'complete',180.0,'2026-11-28T23:15:07Z');
INSERT INTO "trials" VALUES(5,2,2,0,0,1024,1.0,8198,'abandoned',20.0,'2026-11-28T23:15:07Z');
CREATE INDEX "idx_runs_fingerprint_hash"
    ON "runs" ("fingerprint_hash");
CREATE INDEX "idx_trials_run_id"
    ON "trials" ("run_id");
CREATE INDEX "idx_samples_run_id"
    ON "samples" ("run_id");
CREATE INDEX "idx_certificates_run_id"
    ON "certificates" ("run_id");
CREATE UNIQUE INDEX "idx_trials_run_id_trial_id"
    ON "trials" ("run_id", "trial_id");
CREATE UNIQUE INDEX "idx_trials_run_id_hierarchical_allreduce_hierarchical_allgather_cache_capacity_cycle_time_ms_fusion_threshold_bytes"
    ON "trials" ("run_id", "hierarchical_allreduce", "hierarchical_allgather", "cache_capacity", "cycle_time_ms", "fusion_threshold_bytes");
CREATE VIEW run_summary AS 
        SELECT runs.run_id, runs.csv_key AS job, runs.host, runs.size, runs.local_size,
            runs.cross_size, runs.state, runs.started_at, runs.finished_at,
            (SELECT count(*) FROM trials AS t WHERE t.run_id = runs.run_id) AS trial_count,
            trials.trial_id AS best_trial_id, trials.hierarchical_allreduce, trials.hierarchical_allgather, trials.cache_capacity, trials.cycle_time_ms, trials.fusion_threshold_bytes, trials.score,
            100 * certificates.gain AS gain_percent,
            100 * certificates.gain_low AS gain_low_percent,
            100 * certificates.gain_high AS gain_high_percent,
            certificates.certified
        FROM runs
        LEFT JOIN trials ON trials.run_id = runs.run_id AND trials.trial_id = runs.best_trial_id
        LEFT JOIN certificates ON certificates.id =
            (SELECT max(id) FROM certificates AS c WHERE c.run_id = runs.run_id)
        ORDER BY runs.run_id DESC;
CREATE VIEW trial_gains AS 
        SELECT trials.run_id, trials.trial_id, trials.hierarchical_allreduce, trials.hierarchical_allgather, trials.cache_capacity, trials.cycle_time_ms, trials.fusion_threshold_bytes, trials.state, trials.score,
            100 * (trials.score / nullif(base.score, 0) - 1) AS over_default_percent
        FROM trials
        LEFT JOIN trials AS base ON base.run_id = trials.run_id AND base.trial_id = 0
        ORDER BY trials.run_id DESC, trials.score DESC;
COMMIT;
PRAGMA application_id = 1213612372;
PRAGMA user_version = 1;
